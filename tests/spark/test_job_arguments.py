"""Job arguments: as Glue gives them, with and without Glue."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from headrace.model.errors import InvalidRequestError
from headrace.spark.job_arguments import job_arguments


def test_named_arguments_are_found_and_others_ignored() -> None:
    argv = ["job.py", "--scope", "s", "--JOB_NAME", "delays", "--TempDir", "s3://x", "--stream=t", "--job-bookmark-off"]
    assert job_arguments(["JOB_NAME", "scope", "stream"], ["metrics"], argv=argv) == {
        "JOB_NAME": "delays",
        "scope": "s",
        "stream": "t",
        "metrics": None,
    }


def test_dashes_become_underscores() -> None:
    assert job_arguments(["end-cut"], argv=["job.py", "--end-cut", "x"]) == {"end_cut": "x"}


@pytest.mark.parametrize("argv", [["job.py"], ["job.py", "--scope"], ["job.py", "--scop", "s"]])
def test_a_missing_argument_is_an_error_with_its_name(argv: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="--scope") as raised:
        job_arguments(["scope"], argv=argv)
    assert raised.value.specific_code == "missing_argument"


def test_glue_decides_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def resolve(argv: list[str], names: list[str]) -> dict[str, str]:
        asked.append(names)
        return dict.fromkeys(names, "from glue") | {"extra": "ignored"}

    utils = ModuleType("awsglue.utils")
    utils.getResolvedOptions = resolve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "awsglue", ModuleType("awsglue"))
    monkeypatch.setitem(sys.modules, "awsglue.utils", utils)
    found = job_arguments(["scope"], ["stream", "cut"], argv=["job.py", "--scope", "s", "--cut", "c"])
    assert found == {"scope": "from glue", "stream": None, "cut": "from glue"}
    assert asked == [["scope", "cut"]]

"""Job arguments: as Glue gives them, with and without Glue."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from job_files_in_memory import FilesInMemory

from glue_jobs import report, stream_to_lake, windowed_counts
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
    arguments = job_arguments(["scope"], ["stream", "cut"], argv=["job.py", "--scope", "s", "--cut", "c"])
    assert arguments == {"scope": "from glue", "stream": None, "cut": "from glue"}
    assert asked == [["scope", "cut"]]


PLACES = {"controller": "http://c", "scope": "s", "stream": "t", "checkpoint": "/c", "output": "/o", "auth": None}
TIMES = {"from": "2026-11-23T00:00:00Z", "to": None, "intervals": None}
WINDOWS = {"target_stream": "u", "window_s": "60", "time_field": "at"}


@pytest.mark.parametrize(
    ("run", "given", "message"),
    [
        (report.run, TIMES | {"from": "yesterday"}, "'yesterday' is not a time"),
        (report.run, TIMES | {"from": "2026-11-23T00:00:00"}, "has no time zone"),
        (report.run, TIMES | {"to": "soon"}, "'soon' is not a time"),
        (report.run, TIMES | {"intervals": "many"}, "'many' is not a whole number"),
        (stream_to_lake.run, {"trigger_s": "x"}, "'x' is not a whole number"),
        (stream_to_lake.run, {"trigger_s": "0"}, "'0' is not a whole number of at least 1"),
        (windowed_counts.run, WINDOWS | {"trigger_s": "x"}, "'x' is not a whole number"),
    ],
)
def test_a_value_without_meaning_is_named(
    run: Callable[[Any, dict[str, str | None]], object], given: dict[str, str | None], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        run(None, PLACES | given)


def test_the_report_is_never_written_over_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--output` is a directory in the other jobs, so it may be the directory of a lake."""
    files = FilesInMemory()
    files.create("/o/rows/part-0", "the only copy")
    monkeypatch.setattr(report, "HadoopFiles", lambda _spark: files)
    session: Any = None
    with pytest.raises(InvalidRequestError, match="/o is a directory: give the path of a file"):
        report.run(session, PLACES | TIMES)
    assert files.texts == {"/o/rows/part-0": "the only copy"}

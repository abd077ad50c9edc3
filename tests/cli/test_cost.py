"""`headrace cost` at the command line; `test_bill.py` has its arithmetic."""

from __future__ import annotations

import json

import pytest

from headrace.cli.application import run


def test_lines_add_up(capsys: pytest.CaptureFixture[str]):
    assert run(["cost", "--mb-per-s", "10", "--readers", "3", "--retention-days", "7", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(line["dollars"] for line in document["lines"]) == pytest.approx(document["dollars"], abs=0.1)
    assert [line["text"].split(",")[0] for line in document["others"]] == [
        "Kinesis provisioned",
        "Kinesis on demand",
        "Kinesis On-demand Advantage",
        "MSK Express",
    ]


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]):
    assert run(["cost", "--mb-per-s", "1", "--readers", "0", "--retention-days", "1"]) == 0
    table, _, elsewhere = capsys.readouterr().out.partition("\n\n")
    assert table.splitlines()[-1].startswith("together")
    assert "November 2026" in elsewhere


def test_an_impossible_load_is_refused(capsys: pytest.CaptureFixture[str]):
    assert run(["cost", "--mb-per-s", "-1", "--readers", "0", "--retention-days", "1"]) != 0
    assert "mb-per-s is -1" in capsys.readouterr().err

"""The nightly run: what it consists of, that it goes on after a failure, and its report."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest
from scripts_under_test import loaded_script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def nightly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    module = loaded_script("run_nightly", monkeypatch)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "REPORTS", tmp_path / "build" / "nightly")
    return module


def test_each_make_target_of_the_steps_exists(nightly: ModuleType):
    targets = set(re.findall(r"^([a-z0-9.%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [step.command[-1] for step in nightly.STEPS if step.command[0] == "make"]
    assert named
    assert {"test-spark-%" if name.startswith("test-spark-") else name for name in named} <= targets


def test_names_of_steps_are_different(nightly: ModuleType):
    names = [step.name for step in nightly.STEPS]
    assert len(names) == len(set(names))


def test_a_failed_step_does_not_stop_the_later_ones(nightly: ModuleType, monkeypatch: pytest.MonkeyPatch):
    fails = nightly.Step("fails", [sys.executable, "-c", "print('line 1'); print('line 2'); raise SystemExit(3)"], 1)
    passes = nightly.Step("passes", [sys.executable, "-c", "print('all well')"])
    monkeypatch.setattr(nightly, "STEPS", (fails, passes))
    assert nightly.main([]) == 1
    page = (nightly.REPORTS / "report.md").read_text()
    assert re.search(r"\| fails \| `python -c .*` \| .* \| 0\.\d \| failed with exit code 3 \|", page)
    assert "| passed |" in page
    assert "line 2" in page
    assert "\nline 1" not in page, "the report has the last lines of a step only"
    assert fails.log.read_text() == "line 1\nline 2\n"


def test_a_repeated_step_keeps_the_outcomes_of_others(nightly: ModuleType, monkeypatch: pytest.MonkeyPatch):
    steps = [nightly.Step(name, [sys.executable, "-c", f"print('{name} ran')"]) for name in ("first", "second")]
    monkeypatch.setattr(nightly, "STEPS", steps)
    assert nightly.main([]) == 0
    broken = nightly.Step("second", [sys.executable, "-c", "raise SystemExit('broken now')"])
    monkeypatch.setattr(nightly, "STEPS", (steps[0], broken))
    assert nightly.main(["--only", "second"]) == 1
    page = (nightly.REPORTS / "report.md").read_text()
    assert "first ran" in page
    assert "broken now" in page
    assert page.count("| passed |") == 1
    assert nightly.main(["--only", "first"]) == 0, "only what was repeated decides"


def test_a_report_names_no_directory_of_the_machine(nightly: ModuleType, monkeypatch: pytest.MonkeyPatch):
    step = nightly.Step("one", ["make", "one"])
    nightly.REPORTS.mkdir(parents=True)
    step.log.write_text(f"wrote {nightly.ROOT}/build/one.json\n")
    monkeypatch.setattr(nightly, "STEPS", (step,))
    step.stored_outcome.write_text(json.dumps(asdict(nightly.Outcome(0, 90.0, "2026-11-24 01:00", "c78b1205"))))
    page = nightly.report()
    assert "wrote ./build/one.json" in page
    assert "| one | `make one` | 2026-11-24 01:00 | c78b1205 | 1.5 | passed |" in page


def test_an_unknown_step_is_refused(nightly: ModuleType, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        nightly.main(["--only", "absent"])
    assert "there are simulation, deliberate-bugs" in capsys.readouterr().err

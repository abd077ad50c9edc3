"""The conformance checks of Pravega's own clients: their results, the table made from them, and how they are run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from scripts_under_test import loaded_script

ROOT = Path(__file__).resolve().parents[2]
JAVA = ROOT / "tests" / "conformance" / "java" / "src" / "main" / "java" / "headrace" / "conformance"
NAMED = re.compile(r'new Check\(AREA, "((?:[^"\\]|\\.)*)"')


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded_script("generate_conformance_table", monkeypatch)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded_script("run_conformance", monkeypatch)


def test_the_document_has_the_results_that_are_kept():
    command = [sys.executable, "scripts/generate_conformance_table.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_other_results_make_another_document(table: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    check = {"area": "a", "name": "x | <y>", "outcome": "failed", "note": "two\nlines"}
    (tmp_path / "java.json").write_text(json.dumps({"client": "c", "version": "1", "checks": [check]}))
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    monkeypatch.setattr(table, "ROOT", table.DOCUMENT.parent)
    assert table.main(["--check"]) == 1
    made = table.tables(table.results())
    assert "| a | x \\| &lt;y> | no: two lines |" in made
    assert "0 of 1 checks pass" in made
    with pytest.raises(ValueError, match="has no lines"):
        table.document_with("a document without markers", made)


def test_the_kept_results_are_those_of_the_checks_there_are(table: ModuleType):
    """A check that is added, renamed or removed needs a run of `make conformance`."""
    kept = [check["name"] for check in table.results()["java"]["checks"]]
    source = "\n".join(path.read_text() for path in JAVA.glob("*.java"))
    written = {name for name in NAMED.findall(source) if name != "an event of "}
    sizes = {f"an event of {mebibytes} MiB" for mebibytes in (9, 20, 30)}
    assert set(kept) == written | sizes
    assert len(kept) == len(set(kept))


def test_the_kept_results_of_mixed_groups_are_of_the_tests(table: ModuleType):
    kept = [check["name"] for check in table.results()["java-and-python"]["checks"]]
    source = (ROOT / "tests" / "conformance" / "test_readers_of_both_clients.py").read_text()
    assert kept == [name.replace("_", " ") for name in re.findall(r"^def test_(\w+)", source, re.MULTILINE)]


def test_a_report_of_pytest_becomes_checks(runner: ModuleType, tmp_path: Path):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.foreign_client.test_byte_streams" name="test_a_seek" '
        'time="1.2"/><testcase classname="tests.foreign_client.test_events" name="test_order" time="2">'
        '<failure message="why">x</failure></testcase></testsuite></testsuites>'
    )
    assert runner.checks_of_report(report) == [
        {"area": "byte streams", "name": "a seek", "outcome": "passed", "seconds": 1.2, "note": ""},
        {"area": "events", "name": "order", "outcome": "failed", "seconds": 2.0, "note": "why"},
    ]


def test_without_java_its_client_is_skipped_with_a_line(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(runner.shutil, "which", lambda _tool: None)
    assert runner.main(["--client", "java"]) == 0
    assert "the Java client is skipped: there is no java on the path" in capsys.readouterr().out
    assert runner.main(["--client", "java-and-python"]) == 0
    assert "the Java client is skipped: there is no java on the path" in capsys.readouterr().out


def test_a_jdk_that_is_too_old_is_told(runner: ModuleType, monkeypatch: pytest.MonkeyPatch):
    def shows(version: str) -> Any:
        return lambda *_, **__: subprocess.CompletedProcess(
            [], 0, f"Apache Maven 3.8.7\nJava version: {version}, vendor: x\n"
        )

    monkeypatch.setattr(runner.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(runner.subprocess, "run", shows("11.0.2"))
    assert "Maven uses Java 11.0.2" in runner.missing_java_tool()
    monkeypatch.setattr(runner.subprocess, "run", shows("17.0.15"))
    assert runner.missing_java_tool() is None


def test_results_are_kept_without_durations(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results")
    runner.keep("java", "c", "1", [{"area": "a", "name": "n", "outcome": "passed", "seconds": 1.0, "note": ""}])
    kept = json.loads((tmp_path / "results" / "java.json").read_text())
    assert kept == {
        "client": "c", "version": "1", "checks": [{"area": "a", "name": "n", "outcome": "passed", "note": ""}],
    }  # fmt: skip
    assert runner.java_client_version() == "0.13.0"

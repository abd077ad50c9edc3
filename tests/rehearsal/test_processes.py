"""All processes of a rehearsal end with it, also those that its own processes started."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rehearsal import processes

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
"""


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(processes, "SCRATCH", tmp_path)
    monkeypatch.setattr(processes, "LOGS", tmp_path / "logs")
    return tmp_path


def test_a_grandchild_of_its_own_session_is_ended(scratch: Path):
    processes.run("parent", [sys.executable, "-c", PARENT], os.environ)
    pid = int((scratch / "logs" / "parent.log").read_text())
    assert pid in processes.left()
    assert processes.kill_all() == 1
    assert processes.left() == []


def test_processes_of_another_folder_are_not_touched(scratch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    processes.run("parent", [sys.executable, "-c", PARENT], os.environ)
    monkeypatch.setattr(processes, "SCRATCH", tmp_path / "other")
    assert processes.kill_all() == 0
    monkeypatch.setattr(processes, "SCRATCH", scratch)
    assert processes.kill_all() == 1


def test_a_failed_program_is_an_error_with_its_log(scratch: Path):
    with pytest.raises(processes.ProcessFailedError, match="exit code 3:\nno stack"):
        processes.run("fails", [sys.executable, "-c", "print('no stack'); raise SystemExit(3)"], os.environ)


def test_a_program_that_ignores_sigterm_is_killed(scratch: Path):
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    )
    process = processes.start("ignores", [sys.executable, "-c", program], os.environ)
    while not (scratch / "logs" / "ignores.log").read_text():
        pass
    processes.stop(process, grace_s=0.1)
    assert process.returncode == -9

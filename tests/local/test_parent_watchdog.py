"""A child ends with its parent, even when that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CHILD = """
import signal, sys, threading
stopped = threading.Event()
if len(sys.argv) > 1 and sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
print("ready", *sys.argv[1:], flush=True)
stopped.wait()
sys.exit(3)
"""

PARENT = """
import subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-m", "headrace.local.parent_watchdog", "watched_child", *sys.argv[1:]],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
)
print(child.pid, child.stdout.readline().strip(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "watched_child.py").write_text(CHILD)
    return dict(os.environ) | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


def test_arguments_and_exit_code_are_those_of_the_module(environment: dict[str, str]):
    child = subprocess.Popen(
        [sys.executable, "-m", "headrace.local.parent_watchdog", "watched_child", "a", "b"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert child.stdout is not None
    assert child.stdout.readline().split() == ["ready", "a", "b"]
    child.terminate()
    child.communicate(timeout=60)
    assert child.returncode == 3


def test_a_child_ends_when_its_parent_was_killed(environment: dict[str, str]):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    pid, said = parent.stdout.readline().split()
    assert said == "ready"
    child = os.pidfd_open(int(pid))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _await_end(child)


def test_a_child_that_ignores_the_request_ends_as_well(environment: dict[str, str], tmp_path: Path):
    shortened = "import headrace.local.parent_watchdog as watchdog\nwatchdog.STOP_GRACE_S = 0.1\nwatchdog.main()\n"
    (tmp_path / "short_watchdog.py").write_text(shortened)
    program = PARENT.replace('"headrace.local.parent_watchdog"', '"short_watchdog"')
    parent = subprocess.Popen(
        [sys.executable, "-c", program, "stubborn"], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline().split()[0]))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _await_end(child)


def _await_end(pidfd: int) -> None:
    """Becomes readable when the process has ended; the time only keeps a failing test from hanging."""
    import select

    ended, _, _ = select.select([pidfd], [], [], 60)
    os.close(pidfd)
    assert ended

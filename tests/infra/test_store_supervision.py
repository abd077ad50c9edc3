"""The parent process in a store's task restarts what dies and ends what is told to end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from segmentstore_fargate import supervised

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60
"""Only so that a broken supervisor fails the test instead of stopping the run."""

SUPERVISE = """
import sys
from segmentstore_fargate.supervised import Supervisor
sys.exit(Supervisor(sys.argv[1:], pause_s=0).run())
"""
DIES_TWICE = """
import pathlib, sys
marks = pathlib.Path(sys.argv[1])
marks.write_text(marks.read_text() + "x")
sys.exit({1: 2, 2: 1}.get(len(marks.read_text()), 0))
"""
SERVES = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[1])))
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def supervise():
    """Starts a supervisor over a Python program; nothing of it outlives the test."""
    started = []

    def start(program: str, argument: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, sys.executable, "-c", program, argument],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


def test_a_store_that_dies_is_started_again_until_it_ends_well(supervise, tmp_path):
    marks = tmp_path / "starts"
    marks.write_text("")
    process = supervise(DIES_TWICE, str(marks))
    assert process.wait(DEADLINE_S) == 0
    assert marks.read_text() == "xxx"


@pytest.mark.parametrize("code", [0, 3])
def test_a_store_that_is_told_to_stop_is_not_started_again(supervise, code):
    process = supervise(SERVES, str(code))
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code
    assert output == "", "one store, one line"


def test_a_store_that_is_killed_is_started_again(supervise):
    process = supervise(SERVES, "0")
    assert process.stdout.readline() == "ready\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (child,) = map(int, children)
    subprocess.run(["kill", "-KILL", str(child)], check=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0


def test_the_image_starts_the_supervisor_and_that_the_store():
    dockerfile = (ROOT / "segmentstore_fargate" / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["python", "-m", "segmentstore_fargate.supervised"]' in dockerfile
    assert supervised.STORE_COMMAND[1:] == ("-m", "segmentstore_fargate")

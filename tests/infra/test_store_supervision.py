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
import os, sys
from segmentstore_fargate.supervised import Supervisor
environments = [{**os.environ, "NUMBER": str(number)} for number in range(int(sys.argv[1]))]
sys.exit(Supervisor(sys.argv[2:], environments, pause_s=0).run())
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
SAYS_WHO_IT_IS = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(os.environ["NUMBER"]) * int(sys.argv[1])))
os.write(1, f"{os.environ['NUMBER']} {os.getpid()}\\n".encode())
while True:
    signal.pause()
"""


@pytest.fixture
def supervise():
    """Starts a supervisor over a Python program; nothing of it outlives the test."""
    started = []

    def start(program: str, argument: str, processes: int = 1) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, str(processes), sys.executable, "-c", program, argument],
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
    (child,) = _children(process.pid)
    subprocess.run(["kill", "-KILL", str(child)], check=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0


def _children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def test_a_process_that_dies_is_started_again_without_the_others(supervise):
    process = supervise(SAYS_WHO_IT_IS, "0", 3)
    started = dict(process.stdout.readline().split() for _ in range(3))
    assert sorted(started) == ["0", "1", "2"]
    subprocess.run(["kill", "-KILL", started["1"]], check=True)
    number, pid = process.stdout.readline().split()
    assert number == "1"
    assert sorted(_children(process.pid)) == sorted(map(int, [started["0"], pid, started["2"]]))
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0


def test_one_bad_end_is_a_bad_end(supervise):
    process = supervise(SAYS_WHO_IT_IS, "3", 2)
    for _ in range(2):
        process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 3


def test_the_image_starts_the_supervisor_and_that_the_store():
    dockerfile = (ROOT / "segmentstore_fargate" / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["python", "-m", "segmentstore_fargate.supervised"]' in dockerfile
    assert supervised.STORE_COMMAND[1:] == ("-m", "segmentstore_fargate")

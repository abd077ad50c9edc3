"""The parent process in a store's task restarts what dies and ends what is told to end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.model.cluster import TAKE_OVER_AFTER_DEFAULT_S
from segmentstore_fargate import supervised
from segmentstore_fargate.layout import mark_served
from segmentstore_fargate.restart_policy import JOURNAL_FAILED, LOOP_EXITS, RESTART_PAUSE_S, restart_pause_s

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
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # a pause would miss a signal that comes just before it
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
sys.exit(int(sys.argv[1]))
"""
SAYS_WHO_IT_IS = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.write(1, f"{os.environ['NUMBER']} {os.getpid()}\\n".encode())
signal.sigwait([signal.SIGTERM])
sys.exit(int(os.environ["NUMBER"]) * int(sys.argv[1]))
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


def test_a_store_that_dies_is_started_again_until_it_ends_well(supervise, tmp_path: Path):
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


SUPERVISE_A_VOLUME = """
import pathlib, sys
from headrace.model.cluster import TAKE_OVER_AFTER_DEFAULT_S
from segmentstore_fargate import supervised
from segmentstore_fargate.layout import mark_served
from segmentstore_fargate.restart_policy import JOURNAL_FAILED, RESTART_PAUSE_S, restart_pause_s
from segmentstore_fargate.layout import has_logs, was_served
volume = pathlib.Path(sys.argv[1])
was_empty = not has_logs(volume)
sys.exit(
    supervised.Supervisor(
        [sys.executable, "-c", *sys.argv[3:]],
        [{"PATH": ""}],
        lambda: was_empty and not was_served(volume),
        pause_s=0,
        first_service_s=float(sys.argv[2]),
    ).run()
)
"""
DIES_AND_COUNTS = """
import pathlib, sys
marks = pathlib.Path(sys.argv[1])
marks.write_text(marks.read_text() + "x")
sys.exit(0 if len(marks.read_text()) == 20 else 1)
"""
HANGS = """
import signal
signal.pause()
"""
LATER_S, AT_ONCE_S = 3600.0, 0.0


@pytest.fixture
def volume(tmp_path: Path):
    made = tmp_path / "volume"
    made.mkdir()
    return made


def _supervise(volume, first_service_s: float, *program: str) -> int:
    command = [sys.executable, "-c", SUPERVISE_A_VOLUME, str(volume), str(first_service_s), *program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=DEADLINE_S, check=False).returncode


def test_task_with_an_image_that_never_serves_ends(volume, tmp_path: Path):
    """ECS counts the task as failed within minutes, where the health check would take ten."""
    starts = tmp_path / "starts"
    starts.write_text("")
    assert _supervise(volume, LATER_S, DIES_AND_COUNTS, str(starts)) == supervised.NEVER_SERVED
    assert len(starts.read_text()) == supervised.EARLY_DEATHS_MAX


def test_task_whose_process_never_serves_ends(volume):
    assert _supervise(volume, AT_ONCE_S, HANGS) == supervised.NEVER_SERVED


def test_task_on_a_volume_with_a_journal_keeps_restarting(volume, tmp_path: Path):
    """It was not empty when the task began: it may have the only copy of an event."""
    starts = tmp_path / "starts"
    starts.write_text("")
    (volume / "journal").mkdir()
    (volume / "journal" / "journal-0000000001").touch()
    assert _supervise(volume, AT_ONCE_S, DIES_AND_COUNTS, str(starts)) == 0
    assert len(starts.read_text()) == 20


def test_task_that_has_served_keeps_restarting(volume, tmp_path: Path):
    starts = tmp_path / "starts"
    starts.write_text("")
    mark_served(volume)
    assert _supervise(volume, AT_ONCE_S, DIES_AND_COUNTS, str(starts)) == 0
    assert len(starts.read_text()) == 20


def test_patience_covers_what_a_good_store_waits_for():
    """A new store may wait for its former self, and for the others to take over from it."""
    assert supervised.FIRST_SERVICE_S >= 2 * TAKE_OVER_AFTER_DEFAULT_S
    assert sum(map(restart_pause_s, range(1, supervised.EARLY_DEATHS_MAX))) >= 60


def test_a_killed_process_is_back_within_half_a_second():
    """Until then its containers have an owner that does not answer, or one log member less."""
    assert RESTART_PAUSE_S <= 0.5


SUPERVISE_A_BAD_VOLUME = """
import os, pathlib, sys
from segmentstore_fargate.supervised import Supervisor
left = pathlib.Path(sys.argv[1])
environments = [{**os.environ, "NUMBER": str(number)} for number in range(2)]
def leave(process):
    left.write_text(left.read_text() + str(process) if left.exists() else str(process))
    if sys.argv[2] == "broken":
        raise RuntimeError("no credentials")
    return sys.argv[2] == "3"
leave = None if sys.argv[2] == "1" else leave
sys.exit(Supervisor([sys.executable, "-c", *sys.argv[3:]], environments, leave=leave, pause_s=0).run())
"""
THE_SECOND_FAILS = """
import os, pathlib, signal, sys
marks = pathlib.Path(sys.argv[2])
if os.environ["NUMBER"] == "0":
    def stop(*_):
        marks.with_suffix(".stopped").touch()
        sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    marks.with_suffix(".serves").touch()
    while not marks.with_suffix(".ended").exists():
        signal.sigtimedwait([], 0.01)
    sys.exit(0)
while not marks.with_suffix(".serves").exists():
    signal.sigtimedwait([], 0.01)
marks.write_text(marks.read_text() + "x")
if len(marks.read_text()) == int(sys.argv[3]):
    marks.with_suffix(".ended").touch()
    sys.exit(0)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("copies", "code", "starts", "expected", "asked"),
    [
        ("3", JOURNAL_FAILED, 3, supervised.VOLUME_FAILED, "1"),
        ("3", 1, LOOP_EXITS - 2, 0, None),
        ("needed", JOURNAL_FAILED, 7, 0, "1111"),
        ("broken", JOURNAL_FAILED, 7, 0, "1111"),
        ("1", JOURNAL_FAILED, 7, 0, None),
        ("3", 1, LOOP_EXITS, supervised.DOES_NOT_STAY_UP, "1"),
        ("needed", 1, LOOP_EXITS + 2, 0, "1"),
        ("1", 1, LOOP_EXITS + 2, 0, None),
    ],
)
def test_a_bad_store_is_replaced_if_others_have_copies(tmp_path: Path, copies, code, starts, expected, asked):
    """The second of its processes does not stay up, until it has ended `starts` times or its task is replaced."""
    marks, left = tmp_path / "starts", tmp_path / "left"
    marks.write_text("")
    is_replaced = expected != 0
    program = [THE_SECOND_FAILS, str(code), str(marks), str(starts + is_replaced)]
    command = [sys.executable, "-c", SUPERVISE_A_BAD_VOLUME, str(left), copies, *program]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == expected, ended.stderr.decode()
    assert len(marks.read_text()) == starts
    assert (left.read_text() if left.exists() else None) == asked
    assert (b"event=store_keeps_ending process=1" in ended.stderr) is (starts >= LOOP_EXITS)
    assert marks.with_suffix(".stopped").exists() is is_replaced, "the other process shuts down as after SIGTERM"


def test_the_image_starts_the_supervisor_and_that_the_store():
    dockerfile = (ROOT / "segmentstore_fargate" / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["python", "-m", "segmentstore_fargate.supervised"]' in dockerfile
    assert supervised.STORE_COMMAND[1:] == ("-m", "segmentstore_fargate")

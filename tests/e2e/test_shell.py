"""The command `headrace` as a user runs it: processes, pipes and signals, against a running stack."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from headrace.client import connect

KEYS = 7
EVENTS = 4_000
SCALES = (3, 5, 2)


@pytest.fixture
def segment_stores() -> int:
    return 1


def test_commands_against_a_running_stack(running: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """One stack for all: its start costs more than the commands."""
    monkeypatch.setenv("HEADRACE_URL", running["endpoints"]["http"])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    _quickstart_runs()
    _order_survives_scales_that_split_and_merge_the_same_keys()
    _an_interrupted_writer_tells_what_is_durable()
    _a_closed_pipe_is_no_error()


def _shell(command: str) -> str:
    done = subprocess.run(["sh", "-e", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), (command, done)
    return done.stdout


def _quickstart_runs():
    shown = _shell("headrace quickstart | sh -e")
    assert "1000 events written" in shown
    assert "SEGMENT  KEY SPACE" in shown
    assert sorted(map(int, _shell("headrace event read shop/orders --from -1h").split())) == [*range(1, 1_001)]
    assert "1000 events written" in _shell("headrace quickstart | sh -e"), "it can be repeated"
    copied = "headrace event read shop/orders --format raw | headrace event write shop/copy --format raw"
    _shell("headrace stream create shop/copy")
    assert _shell(copied) == "2000 events written\n"


def _order_survives_scales_that_split_and_merge_the_same_keys():
    _shell("headrace stream create shop/keys --segments 1")
    with connect(os.environ["HEADRACE_URL"]) as client, client.writer("shop", "keys") as writer:
        for number in range(EVENTS):
            if number % (EVENTS // (len(SCALES) + 1)) == 1 and number > 1:
                segments = SCALES[number // (EVENTS // (len(SCALES) + 1)) - 1]
                _shell(f"headrace stream scale shop/keys --segments {segments}")
                assert client.admin.get_stream("shop", "keys").segments == segments
            writer.write(b"%d %d" % (number % KEYS, number), routing_key=str(number % KEYS))
    read: dict[str, list[int]] = defaultdict(list)
    for line in _shell("headrace event read shop/keys").splitlines():
        key, number_text = line.split()
        read[key].append(int(number_text))
    assert read == {str(key): list(range(key, EVENTS, KEYS)) for key in range(KEYS)}


def _an_interrupted_writer_tells_what_is_durable():
    _shell("headrace stream create shop/interrupted --segments 1")
    with (
        subprocess.Popen(
            ["headrace", "event", "write", "shop/interrupted"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        ) as writing,
        connect(os.environ["HEADRACE_URL"]) as client,
        client.reader("shop", "interrupted") as reader,
    ):
        assert writing.stdin is not None
        assert writing.stderr is not None
        writing.stdin.write(b"one\ntwo\n")
        writing.stdin.flush()
        events = iter(reader)
        assert [next(events).event, next(events).event] == [b"one", b"two"]
        writing.send_signal(signal.SIGINT)
        said = writing.stderr.read().decode()
        assert (writing.wait(), said.count("\n")) == (130, 1)
    assert " of 2 events acknowledged; to continue: --from-line " in said


def _a_closed_pipe_is_no_error():
    command = "set -o pipefail; headrace event read shop/orders | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)

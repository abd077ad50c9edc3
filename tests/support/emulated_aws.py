"""AWS on loopback in a process of its own, for the tests of a session."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.local.aws_emulator import READY_PREFIX

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def emulated_aws() -> Iterator[str]:
    """The address of an AWS emulator; it ends with the block."""
    command = [sys.executable, "-m", "headrace.local.aws_emulator", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as emulator:
        assert emulator.stdout is not None
        line = emulator.stdout.readline().strip()
        try:
            assert line.startswith(READY_PREFIX), f"the AWS emulator said {line!r}"
            yield line.removeprefix(READY_PREFIX)
        finally:
            emulator.terminate()

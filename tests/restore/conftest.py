"""A small deployment on an emulator of AWS: its table, a copy of it, and its bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from restore_world import RestoreWorld

from headrace.local.aws_emulator import READY_PREFIX
from headrace.local.resources import aws_environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def aws_endpoint() -> Iterator[str]:
    """The address of an AWS emulator on loopback; it ends with the tests."""
    command = [sys.executable, "-m", "headrace.local.aws_emulator", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as emulator:
        assert emulator.stdout is not None
        line = emulator.stdout.readline().strip()
        try:
            assert line.startswith(READY_PREFIX), f"the AWS emulator said {line!r}"
            yield line.removeprefix(READY_PREFIX)
        finally:
            emulator.terminate()


@pytest.fixture
def world(aws_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestoreWorld]:
    """A deployment that was copied, and has gone on since."""
    for name, value in aws_environment(aws_endpoint).items():
        monkeypatch.setenv(name, value)
    assert os.environ["AWS_ENDPOINT_URL"] == aws_endpoint
    world = RestoreWorld()
    yield world
    world.close()

"""The AWS emulator for tests of the local stack, and real stacks as processes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.local.aws_emulator import READY_PREFIX
from headrace.local.resources import aws_client

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def aws_endpoint(aws_environment: dict[str, str]) -> Iterator[str]:
    """An emulator of our own: each test uses names of its own in it, or resets it."""
    emulator = subprocess.Popen(
        [sys.executable, "-m", "headrace.local.aws_emulator"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert emulator.stdout is not None
        line = emulator.stdout.readline().strip()
        assert line.startswith(READY_PREFIX)
        yield line.removeprefix(READY_PREFIX)
    finally:
        emulator.terminate()
        assert emulator.wait(30) == 0
        assert emulator.stdout is not None
        emulator.stdout.close()


@pytest.fixture
def sqs(aws_endpoint: str) -> Any:
    return aws_client("sqs", aws_endpoint)


@pytest.fixture
def dynamodb(aws_endpoint: str) -> Any:
    return aws_client("dynamodb", aws_endpoint)


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, short enough for a queue, a table and a bucket."""
    readable = "".join(letter if letter.isalnum() else "-" for letter in request.node.originalname)[:30]
    return f"{readable}-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}"

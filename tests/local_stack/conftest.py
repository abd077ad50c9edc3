"""The AWS double for tests of the local stack, and real stacks as processes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_stack.aws_double import READY_PREFIX
from local_stack.resources import aws_client

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def aws_endpoint(aws_environment: dict[str, str]) -> Iterator[str]:
    """A double of our own: each test uses names of its own in it, or resets it."""
    double = subprocess.Popen(
        [sys.executable, "-m", "local_stack.aws_double"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert double.stdout is not None
        line = double.stdout.readline().strip()
        assert line.startswith(READY_PREFIX)
        yield line.removeprefix(READY_PREFIX)
    finally:
        double.terminate()
        assert double.wait(30) == 0
        assert double.stdout is not None
        double.stdout.close()


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

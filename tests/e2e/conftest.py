"""The whole system as a user starts it: `headrace up` as a process of its own, on free ports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.stack import local_stack


@pytest.fixture
def start_stack(tmp_path: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """Starts a stack with two segment stores and returns the content of its state file; stops it after the test."""
    with contextlib.ExitStack() as stack:

        def start() -> dict[str, Any]:
            arguments = tmp_path / "data", tmp_path / "state.json", tmp_path / "up.log"
            return stack.enter_context(local_stack(*arguments))

        yield start


@pytest.fixture
def running(start_stack: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return start_stack()

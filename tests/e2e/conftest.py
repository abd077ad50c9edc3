"""The whole system as a user starts it: `headrace up` as a process of its own, on free ports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shared_stack import shared_stack


@pytest.fixture
def segment_stores() -> int:
    return 2


@pytest.fixture
def start_stack(tmp_path: Path, segment_stores: int) -> Iterator[Callable[[], dict[str, Any]]]:
    """Starts a stack and returns the content of its state file; stops it after the test."""
    with contextlib.ExitStack() as stack:

        def start() -> dict[str, Any]:
            return stack.enter_context(shared_stack(tmp_path, segment_stores=segment_stores))

        yield start


@pytest.fixture
def running(start_stack: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return start_stack()

"""The processes of a test run share a stack: started once, stopped after its last user, replaced if its owner dies."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.testing.shared_stack import STACK, StartStack, shared_stack


class Stacks:
    """Counts the stacks that were started and those that run."""

    def __init__(self) -> None:
        self.started = 0
        self.running = 0

    @contextmanager
    def start(self, directory: Path) -> Iterator[str]:
        assert directory.is_dir()
        self.started += 1
        self.running += 1
        yield f"http://stack-{self.started}"
        self.running -= 1


@pytest.fixture
def stacks() -> Stacks:
    return Stacks()


class User(threading.Thread):
    """Uses the stack until it is told to leave. Locks of two open files exclude each other also within a process."""

    def __init__(self, directory: Path, start: StartStack) -> None:
        super().__init__(daemon=True)
        self._directory, self._start_stack = directory, start
        self.url = ""
        self.has_url, self.leave = threading.Event(), threading.Event()

    def run(self) -> None:
        with shared_stack(self._directory, self._start_stack) as self.url:
            self.has_url.set()
            self.leave.wait()


@pytest.mark.nightly
def test_users_share_the_stack_and_the_owner_waits(tmp_path: Path, stacks: Stacks) -> None:
    owner, user = User(tmp_path, stacks.start), User(tmp_path, stacks.start)
    owner.start()
    assert owner.has_url.wait(30)
    user.start()
    assert user.has_url.wait(30)
    assert owner.url == user.url == "http://stack-1"
    owner.leave.set()
    owner.join(0.2)
    assert owner.is_alive()
    assert stacks.running == 1
    user.leave.set()
    user.join(30)
    owner.join(30)
    assert (stacks.started, stacks.running) == (1, 0)


def test_after_the_end_another_stack_is_started(tmp_path: Path, stacks: Stacks) -> None:
    for number in (1, 2):
        with shared_stack(tmp_path, stacks.start) as url:
            assert url == f"http://stack-{number}"
        assert stacks.running == 0
    assert not (tmp_path / STACK).exists()


def test_the_stack_of_a_dead_owner_is_not_used(tmp_path: Path, stacks: Stacks) -> None:
    """The lock of an owner ends with its process, so a stack of a killed one is not joined."""
    left = {"url": "http://gone", "owner": "owner-1.lock", "users": "users-1.lock"}
    (tmp_path / STACK).write_text(json.dumps(left))
    with shared_stack(tmp_path, stacks.start) as url:
        assert url == "http://stack-1"


def test_a_stack_that_does_not_start_blocks_nobody(tmp_path: Path, stacks: Stacks) -> None:
    @contextmanager
    def broken(directory: Path) -> Iterator[str]:
        raise OSError("no memory")
        yield ""

    with pytest.raises(OSError, match="no memory"), shared_stack(tmp_path, broken):
        raise AssertionError("there is no stack")
    with shared_stack(tmp_path, stacks.start) as url:
        assert url == "http://stack-1"

"""One local stack for all processes of a test run.

The first process that needs the stack starts it and owns it. The others find its URL in a file. The owner waits at its
end until the others are done. File locks tell which processes still run; the system releases them, even after kill -9.
If the owner ends early, its stack ends with it, and the next process that needs one starts another.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Final

START: Final = "start.lock"
STACK: Final = "stack.json"

StartStack = Callable[[Path], AbstractContextManager[str]]
"""Starts a stack with its files in a directory. The context's value is the URL."""


@contextmanager
def shared_stack(directory: Path, start: StartStack) -> Iterator[str]:
    """Yields the URL of the stack that all processes with this directory share.

    Raises:
        LocalStackError: the stack did not become ready, failed, or left a process behind.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory / START, fcntl.LOCK_EX) as starting:
        joining = _join(directory)
        if joining is None:
            with _own(directory, start, starting) as url:
                yield url
            return
    url, joined = joining
    with joined:
        yield url


def _join(directory: Path) -> tuple[str, IO[str]] | None:
    """The URL of a stack whose owner still runs, and the lock of this user of it; None if there is none."""
    try:
        stack = json.loads((directory / STACK).read_text())
    except FileNotFoundError:
        return None
    with (directory / stack["owner"]).open("a") as owner:
        try:
            fcntl.flock(owner, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            users = (directory / stack["users"]).open("a")
            fcntl.flock(users, fcntl.LOCK_SH)
            return stack["url"], users
    return None


@contextmanager
def _own(directory: Path, start: StartStack, starting: IO[str]) -> Iterator[str]:
    """Starts a stack, and stops it when all its users are done."""
    names = {"owner": f"owner-{os.getpid()}.lock", "users": f"users-{os.getpid()}.lock"}
    scratch = directory / f"stack-{os.getpid()}"
    scratch.mkdir(exist_ok=True)
    with _locked(directory / names["owner"], fcntl.LOCK_EX), start(scratch) as url:
        (directory / STACK).write_text(json.dumps({"url": url, **names}))
        fcntl.flock(starting, fcntl.LOCK_UN)
        try:
            yield url
        finally:
            with _locked(directory / START, fcntl.LOCK_EX):
                (directory / STACK).unlink(missing_ok=True)
            _locked(directory / names["users"], fcntl.LOCK_EX).close()  # waits for the users


def _locked(path: Path, kind: int) -> IO[str]:
    """Waits for a lock. It is released when the file is closed."""
    file = path.open("a")
    fcntl.flock(file, kind)
    return file

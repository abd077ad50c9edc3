"""A reader of a group in a process of its own, which never leaves the group: the test kills it.

`python held_reader.py URL SCOPE GROUP READER COUNT` prints `ready` when it has read so many events.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.client import connect


@contextmanager
def held_reader(url: str, scope: str, group: str, reader: str, count: int) -> Iterator[None]:
    """Within the block the reader is in the group, and keeps the segments that it has."""
    command = [sys.executable, __file__, url, scope, group, reader, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.kill()


def main() -> None:
    url, scope, group, reader, count = sys.argv[1:]
    with connect(url) as headrace, headrace.reader_group(scope, group) as opened, opened.reader(reader) as events:
        for number, _ in enumerate(events, start=1):
            if number == int(count):
                print("ready", flush=True)
                sys.stdin.read()


if __name__ == "__main__":
    main()

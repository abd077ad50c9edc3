"""Readers of the Java client and of ours that read one stream in one group, and what each of them has read."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.client import GroupReaderOptions, HeadraceError, ReaderGroup

HANG_S = 120
"""Only keeps a broken client from hanging a test run."""


class Read(NamedTuple):
    """An event that a reader was given, and when, on the clock that all processes of a machine share."""

    at_us: int
    reader: str
    event: str


class ReadLog:
    """What all readers of a test have read, and what else they said. Safe for threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reads: list[Read] = []
        self._notes: list[tuple[str, ...]] = []

    def add(self, *reads: Read) -> None:
        with self._changed:
            self._reads += reads
            self._changed.notify_all()

    def note(self, *words: str) -> None:
        """Adds something that is no event: a checkpoint, the end, or why the reader failed."""
        with self._changed:
            self._notes.append(words)
            self._changed.notify_all()

    @property
    def reads(self) -> list[Read]:
        """What was read so far, in the order in which it was read."""
        with self._changed:
            return sorted(self._reads, key=lambda read: read.at_us)

    def events_of(self, reader: str) -> list[str]:
        return [read.event for read in self.reads if read.reader == reader]

    def await_events(self, count: int) -> list[Read]:
        """Waits until at least so many events were read, and returns them."""
        self._await(lambda: len(self._reads) >= count, f"{count} events")
        return self.reads

    def await_different_events(self, count: int) -> None:
        """Waits until at least so many different events were read; readers after a failed one read some again."""
        self._await(lambda: len({read.event for read in self._reads}) >= count, f"{count} different events")

    def await_events_of(self, reader: str, count: int) -> None:
        """Waits until this reader has read at least so many events."""
        self._await(lambda: sum(read.reader == reader for read in self._reads) >= count, f"{count} events of {reader}")

    def await_note(self, *words: str) -> tuple[str, ...]:
        """Waits for a note that begins with these words, and returns it."""
        self._await(lambda: any(note[: len(words)] == words for note in self._notes), " ".join(words))
        return next(note for note in self._notes if note[: len(words)] == words)

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(holds, HANG_S):
                raise AssertionError(f"no {what} after {HANG_S} s; {len(self._reads)} events; notes: {self._notes}")


class JavaReaders:
    """A process with readers of the Java client (`GroupCommands`)."""

    def __init__(
        self, classes: str, uri: str, scope: str, log: ReadLog, errors: Path, environment: Mapping[str, str]
    ) -> None:
        command = ["java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classes]
        command += ["headrace.conformance.GroupCommands", uri, scope]
        self._log = log
        self._answers: queue.Queue[list[str]] = queue.Queue()
        with errors.open("w") as error_file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=error_file,
                text=True,
                encoding="utf-8",
                env={**os.environ, **environment},
            )
        self._thread = threading.Thread(target=self._hear)
        self._thread.start()

    def run(self, *words: str) -> str:
        """Has a command run, and returns its answer. An error of the Java client fails the test."""
        self.send(*words)
        return self.answer()

    def send(self, *words: str) -> None:
        """Begins a command; `answer` waits for its end."""
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        try:
            kind, *said = self._answers.get(timeout=HANG_S)
        except queue.Empty:
            raise AssertionError(f"the Java client did not answer for {HANG_S} s") from None
        assert kind == "done", said
        return said[0]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, *words = line.rstrip("\n").split("\t")
            if kind == "event":
                self._log.add(Read(int(words[1]), words[0], words[2]))
            elif kind in ("done", "error"):
                self._answers.put([kind, *words])
            else:
                self._log.note(kind, *words)
        self._answers.put(["error", "the process has ended"])


class PythonReader:
    """A reader of our client, in a thread of its own."""

    def __init__(self, group: ReaderGroup, name: str, log: ReadLog, lease_s: float = 30.0) -> None:
        self._reader = group.reader(name, GroupReaderOptions(lease_s=lease_s))
        self._name = name
        self._log = log
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def close(self) -> None:
        """Leaves the group after the events that were read."""
        self._stopped.set()
        self._thread.join()
        self._reader.close()

    def _read(self) -> None:
        try:
            while not self._stopped.is_set():
                if self._reader.ended:
                    self._log.note("ended", self._name)
                    return
                if (batch := self._reader.read_batch(timeout_s=0.2)) is not None:
                    at_us = time.time_ns() // 1000
                    self._log.add(*(Read(at_us, self._name, event.decode()) for event in batch.events))
        except HeadraceError as error:
            self._log.note("failed", self._name, error.code or type(error).__name__)


class PythonProcess:
    """A reader of our client in a process of its own, which can be killed."""

    def __init__(self, endpoint: str, scope: str, group: str, name: str, lease_s: float, log: ReadLog) -> None:
        self._log = log
        command = [sys.executable, __file__, endpoint, scope, group, name, str(lease_s)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        self._thread = threading.Thread(target=self._hear)
        self._thread.start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at_us, name, event = line.rstrip("\n").split("\t")
            self._log.add(Read(int(at_us), name, event))


def _main(endpoint: str, scope: str, group: str, name: str, lease_s: str) -> None:
    """Reads for ever, and prints each event."""
    from headrace.client import connect

    options = GroupReaderOptions(lease_s=float(lease_s))
    with connect(endpoint) as ours, ours.reader_group(scope, group) as found, found.reader(name, options) as reader:
        for read in reader:
            print(time.time_ns() // 1000, name, read.event.decode(), sep="\t", flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])

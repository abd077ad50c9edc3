"""A reader group with readers of the Java client and of ours, and the stream that they read."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from readers_of_both_clients import HANG_S, JavaReaders, PythonProcess, PythonReader, ReadLog

from headrace.client import GroupStream, Headrace, ReaderGroup, ReaderGroupConfiguration, ScalingPolicy
from headrace.model.group_updates import ClearCheckpointsBefore


class MixedGroup:
    """A scope with the stream `a` and the group `g`, and readers of both clients in the group."""

    def __init__(self, ours: Headrace, endpoint: str, scope: str, java: JavaReaders, log: ReadLog) -> None:
        self.ours, self.java, self.log, self.scope = ours, java, log, scope
        self._endpoint = endpoint
        self._written: dict[str, int] = {}
        self._opened = ExitStack()

    @property
    def written(self) -> int:
        """The number of events that were written."""
        return sum(self._written.values())

    def create_stream(self, segments: int = 4) -> None:
        self.ours.admin.create_stream(self.scope, "a", scaling=ScalingPolicy.fixed(segments))

    def create_group(self, by: str, checkpoints_ms: int = 1000) -> None:
        """Creates the group with one of the clients. Without an interval no checkpoint is automatic."""
        if by == "java":
            assert self.java.run("create", "g", "a", str(checkpoints_ms)) == "true"
            return
        reads = ReaderGroupConfiguration(
            (GroupStream(self.scope, "a"),),
            group_refresh_ms=500,
            automatic_checkpoint_interval_ms=checkpoints_ms or -1,
        )
        self.ours.admin.reader_groups.create(self.scope, "g", reads)

    def group(self) -> ReaderGroup:
        """The group, for our client."""
        return self._opened.enter_context(self.ours.reader_group(self.scope, "g"))

    def join_java(self, name: str = "java") -> None:
        self.java.run("join", name, "g")

    def join_python(self, name: str = "python", lease_s: float = 30) -> PythonReader:
        reader = PythonReader(self.group(), name, self.log, lease_s)
        self._opened.callback(reader.close)
        return reader

    def join_process(self, name: str, lease_s: float = 3600) -> PythonProcess:
        process = PythonProcess(self._endpoint, self.scope, "g", name, lease_s, self.log)
        self._opened.callback(process.kill)
        return process

    def write(self, each: int, keys: int = 16) -> None:
        """Writes so many events `KEY:NUMBER` of each key; the numbers of a key go on."""
        with self.ours.writer(self.scope, "a") as writer:
            for _ in range(each):
                for key in map(str, range(keys)):
                    number = self._written.get(key, 0)
                    writer.write(f"{key}:{number}".encode(), key)
                    self._written[key] = number + 1

    def await_all(self) -> list[str]:
        """Waits until each event was read; checks that it was read once, and those of a key in their order."""
        read = [logged.event for logged in self.log.await_events(self.written)]
        by_key: dict[str, list[int]] = {}
        for event in read:
            key, _, number = event.partition(":")
            by_key.setdefault(key, []).append(int(number))
        assert by_key == {key: list(range(count)) for key, count in self._written.items()}
        return read

    def await_share(self, segments: int, *readers: str) -> None:
        """Waits until just these readers, `java` and `python` by default, own so many segments each."""
        expected = dict.fromkeys(readers or ("java", "python"), segments)
        with self.ours.reader_group(self.scope, "g") as group:
            await_true(
                lambda: {reader: len(found) for reader, found in group.readers().items()} == expected,
                f"{segments} segments for each of {list(expected)}",
            )

    def await_compaction(self) -> None:
        """Writes so many updates that a reader compacts the state, and waits until one has."""
        with self.ours.reader_group(self.scope, "g") as group:
            entries = group._core._synchronizer.entries
            for _ in range(12):
                nothing = ClearCheckpointsBefore("x" * 60_000)  # there is no checkpoint of this name
                group._thread.run(entries.update_unconditionally([nothing]))
            await_true(lambda: self._mark_of(group) > 0, "compaction")

    @staticmethod
    def _mark_of(group: ReaderGroup) -> int:
        """Where a reader that joins now begins to read the state."""
        entries = group._core._synchronizer.entries
        group._thread.run(entries.fetch())
        return entries.revision - group._thread.run(entries.bytes_since_compaction())

    def close(self) -> None:
        self._opened.close()
        self.java.end()


def await_true(holds: Callable[[], bool], what: str) -> None:
    """Waits until a condition holds."""
    ending_s = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < ending_s, f"no {what} after {HANG_S} s"
        time.sleep(0.1)

"""A program with the client of one release: it writes and reads all the time, and checks what it has read.

`python release_client.py URL NAME` runs with the code that PYTHONPATH names, and uses only what all releases have. It
prints `ready`, then answers each line of its standard input with `done`:

- `use STEP`: uses new streams, a group and a table, and keeps them.
- `reread STEP`: reads what a client, perhaps of another release, has left at this step.
- `check`: ends what runs, and checks that each event came once, in the order of its key.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

from headrace.client import GroupStream, Headrace, ReaderGroupConfiguration, ScalingPolicy, TableConfiguration, connect

SCOPE = "shop"
KEYS = 5
EVENTS = 40
PAUSE_S = 0.02
"""Between two writes: a few thousand events in all."""


def keyed(key: str, number: int) -> bytes:
    return f"{key}:{number}".encode()


class Continuous:
    """A writer, transactions and a reader of one stream, each in a thread, through all that happens meanwhile."""

    def __init__(self, headrace: Headrace, stream: str) -> None:
        self._headrace, self._stream = headrace, stream
        self._stopping = threading.Event()
        self._failures: list[str] = []
        self._read: list[bytes] = []
        self._written: dict[str, int] = {}
        self._committed: set[bytes] = set()
        self._aborted: set[bytes] = set()
        headrace.admin.create_stream(SCOPE, stream, scaling=ScalingPolicy.fixed(3))
        self._writers = [self._thread(self._write), self._thread(self._commit)]
        self._reader = self._thread(self._read_all)
        for thread in (*self._writers, self._reader):
            thread.start()

    def check(self) -> str:
        self._stopping.set()
        for thread in self._writers:
            thread.join()
        with self._headrace.writer(SCOPE, self._stream) as writer:
            for number in range(50):  # the end of each segment
                writer.write(b"end", routing_key=f"end-{number}")
            writer.flush()
        self._reader.join()
        if self._failures:
            return "\n".join(self._failures)
        plain = [event for event in self._read if not event.startswith((b"t", b"end"))]
        for key, count in self._written.items():
            own = [event for event in plain if event.startswith(f"{key}:".encode())]
            if own != [keyed(key, number) for number in range(count)]:
                return f"key {key}: {count} events were written, and other ones or another order were read: {own[-5:]}"
        of_transactions = [event for event in self._read if event.startswith(b"t")]
        if len(of_transactions) != len(set(of_transactions)) or set(of_transactions) != self._committed:
            return f"transactions: {len(self._committed)} events were committed, {len(of_transactions)} were read"
        if min(len(plain), len(of_transactions), len(self._aborted)) == 0:
            return "nothing was written, committed or aborted"
        return f"{len(plain)} events, {len(of_transactions)} of transactions"

    def _write(self) -> None:
        with self._headrace.writer(SCOPE, self._stream) as writer:
            number = 0
            while not self._stopping.is_set():
                key = f"k{number % KEYS}"
                writer.write(keyed(key, self._written.get(key, 0)), routing_key=key)
                self._written[key] = self._written.get(key, 0) + 1
                number += 1
                time.sleep(PAUSE_S)
            writer.flush()

    def _commit(self) -> None:
        with self._headrace.transactional_writer(SCOPE, self._stream) as writer:
            number = 0
            while not self._stopping.is_set():
                transaction = writer.begin()
                events = {keyed(f"t{number}", place) for place in range(4)}
                for event in events:
                    transaction.write(event, routing_key=f"t{number % KEYS}")
                if number % 4 == 3:
                    transaction.abort()
                    self._aborted |= events
                else:
                    transaction.commit(wait=True)
                    self._committed |= events
                number += 1
                time.sleep(PAUSE_S)

    def _read_all(self) -> None:
        ends = 0
        with self._headrace.reader(SCOPE, self._stream) as reader:
            while ends < 50:
                batch = reader.read_batch(timeout_s=120)
                if batch is None:
                    raise AssertionError("the stream ended")
                self._read += [bytes(event) for event in batch.events]
                ends += sum(1 for event in batch.events if event == b"end")

    def _thread(self, run: Callable[[], None]) -> threading.Thread:
        def report() -> None:
            try:
                run()
            except Exception:  # noqa: BLE001  the check reports it
                self._failures.append(traceback.format_exc())
                self._stopping.set()

        return threading.Thread(target=report, daemon=True)


def use(headrace: Headrace, step: str) -> None:
    """Leave two streams, one sealed and scaled; a group and a table; create and delete a third stream."""
    events = [b"%d" % number for number in range(EVENTS)]
    admin, stream, half = headrace.admin, f"stream-{step}", EVENTS // 2
    admin.create_stream(SCOPE, stream, scaling=ScalingPolicy.fixed(2))
    with headrace.writer(SCOPE, stream) as writer:
        writer.write_batch(events[:half], [str(number % 3) for number in range(half)])
        writer.flush()
    with headrace.transactional_writer(SCOPE, stream) as transactions:
        transaction = transactions.begin()
        for event in events[half:]:
            transaction.write(event, routing_key="key")
        transaction.commit(wait=True)
    admin.create_stream(SCOPE, f"sealed-{step}", scaling=ScalingPolicy.fixed(1))
    with headrace.writer(SCOPE, f"sealed-{step}") as writer:
        writer.write(b"before", routing_key="key")
        writer.flush()
        (segment,) = admin.segments(SCOPE, f"sealed-{step}")
        admin.scale_stream(SCOPE, f"sealed-{step}", seal=[segment.segment_id], ranges=[(0.0, 0.5), (0.5, 1.0)])
        writer.write(b"after", routing_key="key")
    admin.seal_stream(SCOPE, f"sealed-{step}")
    admin.create_stream(SCOPE, f"deleted-{step}", scaling=ScalingPolicy.fixed(1))
    admin.seal_stream(SCOPE, f"deleted-{step}")
    admin.delete_stream(SCOPE, f"deleted-{step}")
    admin.reader_groups.create(SCOPE, f"group-{step}", ReaderGroupConfiguration((GroupStream(SCOPE, stream),)))
    read_with_group(headrace, step, half)
    admin.tables.create(SCOPE, f"table-{step}", TableConfiguration(2, 3))
    with headrace.key_value_table(SCOPE, f"table-{step}") as table:
        table.put(b"key", b"1")


def read_with_group(headrace: Headrace, step: str, count: int) -> list[bytes]:
    read: list[bytes] = []
    with headrace.reader_group(SCOPE, f"group-{step}") as group, group.reader("reader") as reader:
        while len(read) < count:
            batch = reader.read_batch(timeout_s=60)
            if batch is None:
                raise AssertionError("the group ended")
            read += [bytes(event) for event in batch.events]
    return read


def reread(headrace: Headrace, step: str) -> None:
    admin, stream = headrace.admin, f"stream-{step}"
    end = admin.stream_cut(SCOPE, stream)
    with headrace.reader(SCOPE, stream, end=end) as reader:
        read = [bytes(each.event) for each in reader]
    assert sorted(read) == sorted(b"%d" % number for number in range(EVENTS)), read
    with headrace.reader(SCOPE, f"sealed-{step}") as reader:
        sealed = [bytes(each.event) for each in reader]
    assert sealed == [b"before", b"after"], sealed
    with headrace.writer(SCOPE, stream) as writer:
        writer.write(b"more", routing_key="key")
        writer.flush()
    admin.truncate_stream(SCOPE, stream, admin.stream_cut(SCOPE, stream))
    with headrace.writer(SCOPE, stream) as writer:
        writer.write_batch([b"%d" % number for number in range(EVENTS)], [str(number % 3) for number in range(EVENTS)])
        writer.flush()
    with headrace.key_value_table(SCOPE, f"table-{step}") as table:
        entry = table.get(b"key")
        assert entry is not None
        table.replace(b"key", b"%d" % (int(entry.value) + 1), entry.version)


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    url, name = sys.argv[1:]
    with connect(url) as headrace:
        if not any(scope == SCOPE for scope in headrace.admin.list_scopes()):
            headrace.admin.create_scope(SCOPE)
        running = Continuous(headrace, f"all-{name}")
        print("ready", flush=True)
        for line in sys.stdin:
            command, *words = line.split()
            if command == "check":
                print(f"done {running.check()!r}", flush=True)
                continue
            {"use": use, "reread": reread}[command](headrace, *words)
            print("done", flush=True)


if __name__ == "__main__":
    main()

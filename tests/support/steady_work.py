"""A writer, transactions, a reader and a reader group that work while something fails, and what they must have seen."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable

from headrace.client import (
    GroupStream,
    Headrace,
    IllegalStateError,
    ReaderGroupConfiguration,
    ScalingPolicy,
    UnavailableError,
    connect,
)

SCOPE = "day"
EVENTS = "events"
ORDERS = "orders"
GROUP = "workers"
KEYS = 5
PAUSE_S = 0.05
HANG_S = 240.0
"""Only keeps a broken system from hanging a test run."""


class SteadyWork:
    """Four threads, each with a client of its own. `begin` and `end` once each; `check` raises what ended a thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._must_end = threading.Event()
        self._failures: list[BaseException] = []
        self.written = 0
        """Numbers that each key of the events has had, the acknowledged ones."""
        self.committed: list[int] = []
        self.uncertain: list[int] = []
        """Transactions of which the client does not know whether they were committed."""
        self.aborted: list[int] = []
        """Transactions whose commit was accepted, and which were aborted since stores may have lost events of them."""
        self.read: dict[str, list[int]] = defaultdict(list)
        self.read_in_group: dict[str, list[int]] = defaultdict(list)
        self._writing = [self._thread(each) for each in (self._write, self._transact)]
        self._reading = [self._thread(each) for each in (self._read, self._take_part)]

    def begin(self) -> None:
        """Make the streams and the group, and let all work."""
        with connect(self._url) as headrace:
            headrace.admin.create_scope(SCOPE)
            for stream, segments in ((EVENTS, 4), (ORDERS, 2)):
                headrace.admin.create_stream(SCOPE, stream, scaling=ScalingPolicy.fixed(segments))
            headrace.admin.reader_groups.create(SCOPE, GROUP, ReaderGroupConfiguration((GroupStream(SCOPE, EVENTS),)))
        for thread in (*self._writing, *self._reading):
            thread.start()
        self.await_progress()

    def check(self) -> None:
        """Raises the error that has ended a thread: the condition to abort every day."""
        for failure in self._failures:
            raise failure

    def await_progress(self) -> None:
        """Wait until events were acknowledged, committed, read and read in the group that were not begun before."""
        before = self._progress()
        deadline_s = time.monotonic() + HANG_S
        while not all(now > then for now, then in zip(self._progress(), before, strict=True)):
            self.check()
            assert time.monotonic() < deadline_s, (before, self._progress())
            time.sleep(PAUSE_S)

    def end(self, *, may_abort: bool = False) -> None:
        """Stop the writers, seal the streams, and compare what was read with what was written.

        Only with `may_abort` a transaction may be aborted whose commit was accepted.
        """
        self._must_end.set()
        self._join(self._writing)
        with connect(self._url) as headrace:
            for stream in (EVENTS, ORDERS):
                headrace.admin.seal_stream(SCOPE, stream)
            self._join(self._reading)
            self.check()
            wanted = {str(key): list(range(self.written)) for key in range(KEYS)}
            assert dict(self.read) == wanted, "events are lost, repeated or out of order"
            assert dict(self.read_in_group) == wanted, "in the group events are lost, repeated or out of order"
            self._check_transactions(headrace)
            assert may_abort or not self.aborted

    def _progress(self) -> tuple[int, ...]:
        counts = (sum(map(len, each.values())) for each in (self.read, self.read_in_group))
        return (self.written, len(self.committed), *counts)

    def _join(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join(HANG_S)
            self.check()
            assert not thread.is_alive()

    def _thread(self, work: Callable[[Headrace], None]) -> threading.Thread:
        """It does not keep a test run from ending whose test has failed."""
        return threading.Thread(target=self._guarded, args=(work,), daemon=True)

    def _guarded(self, work: Callable[[Headrace], None]) -> None:
        try:
            with connect(self._url) as headrace:
                work(headrace)
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the test
            self._failures.append(error)

    def _write(self, headrace: Headrace) -> None:
        with headrace.writer(SCOPE, EVENTS) as writer:
            number = 0
            while not self._must_end.is_set():
                for key in range(KEYS):
                    writer.write(f"{key} {number}".encode(), routing_key=str(key))
                writer.flush()
                number += 1
                self.written = number
                self._must_end.wait(PAUSE_S)

    def _transact(self, headrace: Headrace) -> None:
        number = 0
        with headrace.transactional_writer(SCOPE, ORDERS) as writer:
            while not self._must_end.is_set():
                commits = False
                try:
                    transaction = writer.begin()
                    for key in range(KEYS):
                        transaction.write(f"{key} {number}".encode(), routing_key=str(key))
                    commits = True
                    transaction.commit(wait=True)
                except UnavailableError:
                    if commits:
                        self.uncertain.append(number)
                except IllegalStateError as error:
                    if error.specific_code != "transaction_aborted":
                        raise
                    self.aborted.append(number)
                else:
                    self.committed.append(number)
                number += 1
                self._must_end.wait(PAUSE_S)

    def _read(self, headrace: Headrace) -> None:
        with headrace.reader(SCOPE, EVENTS, start="earliest") as reader:
            for event in reader:
                key, number = event.event.decode().split()
                self.read[key].append(int(number))

    def _take_part(self, headrace: Headrace) -> None:
        with headrace.reader_group(SCOPE, GROUP) as group, group.reader("worker") as reader:
            for event in reader:
                key, number = event.event.decode().split()
                self.read_in_group[key].append(int(number))

    def _check_transactions(self, headrace: Headrace) -> None:
        """Each transaction is there once and wholly, or not at all if its outcome was not known."""
        found: dict[str, list[int]] = defaultdict(list)
        with headrace.reader(SCOPE, ORDERS, start="earliest") as reader:
            for event in reader:
                key, number = event.event.decode().split()
                found[key].append(int(number))
        numbers = found["0"]
        assert dict(found) == {str(key): numbers for key in range(KEYS)}, "a part of a transaction is missing"
        assert numbers == sorted(set(numbers)), "transactions are repeated or out of order"
        assert set(self.committed) <= set(numbers) <= {*self.committed, *self.uncertain}


def until(holds: Callable[[], object], work: SteadyWork, what: str) -> None:
    """Wait for something while all work goes on; `what` is the message if it does not come."""
    deadline_s = time.monotonic() + HANG_S
    while not holds():
        work.check()
        assert time.monotonic() < deadline_s, what
        time.sleep(PAUSE_S)

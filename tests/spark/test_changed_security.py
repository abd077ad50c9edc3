"""A running stack turns TLS and tokens on in the steps of a deployment, under every kind of client that it has.

No client is restarted or configured. Each event is written once, read once by each, and copied once by Spark.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from changing_stack import changing_stack
from sink_world import each_once

from headrace.client import (
    GroupStream,
    Headrace,
    HeadraceError,
    ReaderGroupConfiguration,
    ScalingPolicy,
    UnavailableError,
    connect,
)
from headrace.model.tls_modes import TlsMode
from headrace.wire.connections.blocking import BlockingConnection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]

SCOPE, STREAM, GROUP = "shop", "orders", "billing"
KEYS = 7
IN_TRANSACTIONS = 1_000_000
"""The first number of the events in transactions."""
PER_TRANSACTION = 5
PROGRESS = 20
"""So many events are written before, between and after the changes."""
PATIENCE_S = 300.0
"""Only turns a hang into a failure."""

MEMBER = """
import sys, threading
from headrace.client import connect

ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
with connect(sys.argv[1]) as headrace, headrace.reader_group("shop", "billing") as group:
    with group.reader(sys.argv[2]) as reader:
        while not ended.is_set():
            batch = reader.read_batch(timeout_s=0.5)
            for event in batch.events if batch else ():
                print(event.decode(), flush=True)
"""


class Traffic:
    """Writers and readers in threads. `stop` ends the writers, and `written` has what was acknowledged."""

    def __init__(self, headrace: Headrace) -> None:
        self.headrace = headrace
        self.written = self.committed = 0
        self.read: list[int] = []
        self.failures: list[Exception] = []
        self._stopping, self._read_all = threading.Event(), threading.Event()
        self._writers = [threading.Thread(target=self._kept, args=(each,)) for each in (self._write, self._commit)]
        self._reader = threading.Thread(target=self._kept, args=(self._follow,))
        for thread in (*self._writers, self._reader):
            thread.start()

    @property
    def expected(self) -> Counter[int]:
        return each_once(0, self.written) + each_once(IN_TRANSACTIONS, IN_TRANSACTIONS + self.committed)

    def progress(self) -> None:
        """Wait until each writer has written some more, and the reader has read as much."""
        written, committed, read = self.written, self.committed, len(self.read)
        self.wait(lambda: self.written >= written + PROGRESS and self.committed >= committed + PROGRESS)
        self.wait(lambda: len(self.read) >= read + PROGRESS)

    def wait(self, condition: Callable[[], bool]) -> None:
        for _ in range(int(PATIENCE_S / 0.1)):
            if self.failures:
                raise AssertionError("a client has failed") from self.failures[0]
            if condition():
                return
            threading.Event().wait(0.1)
        raise AssertionError(f"no progress: {self.written} written, {self.committed} committed, {len(self.read)} read")

    def stop_writing(self) -> None:
        self._stopping.set()
        for thread in self._writers:
            thread.join()

    def close(self) -> None:
        self.stop_writing()
        self._read_all.set()
        self._reader.join()

    def _kept(self, run: Callable[[], None]) -> None:
        try:
            run()
        except (HeadraceError, OSError, AssertionError) as error:
            self.failures.append(error)

    def _write(self) -> None:
        with self.headrace.writer(SCOPE, STREAM) as writer:
            while not self._stopping.wait(0.05):
                writer.write(b"%d" % self.written, routing_key=str(self.written % KEYS))
                writer.flush(PATIENCE_S)
                self.written += 1

    def _commit(self) -> None:
        with self.headrace.transactional_writer(SCOPE, STREAM) as writer:
            while not self._stopping.wait(0.2):
                transaction = writer.begin()
                for number in range(self.committed, self.committed + PER_TRANSACTION):
                    transaction.write(b"%d" % (IN_TRANSACTIONS + number), routing_key=str(number % KEYS))
                transaction.commit(wait=True)
                self.committed += PER_TRANSACTION

    def _follow(self) -> None:
        with self.headrace.reader(SCOPE, STREAM, start="earliest") as reader:
            while not self._read_all.is_set():
                batch = reader.read_batch(timeout_s=0.5)
                self.read += [int(event) for event in batch.events] if batch else []


class Member:
    """A process that reads in the group."""

    def __init__(self, url: str, name: str) -> None:
        self.read: list[int] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._output = threading.Thread(target=self._collect)
        self._output.start()

    def close(self) -> None:
        """End it; it must not have failed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._output.join()
        with self._process:
            pass
        assert self._process.returncode == 0

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.read.append(int(line))


@contextmanager
def copying(session: SparkSession, url: str, checkpoint: Path) -> Iterator[StreamingQuery]:
    """A query that copies the stream to `copies`, until the end of the block."""
    where = {"controller": url, "scope": SCOPE}
    events = session.readStream.format("headrace").options(**where, stream=STREAM, start_stream_cut="earliest").load()
    writing = events.select("event").writeStream.format("headrace").options(**where, stream="copies")
    query = writing.option("default_num_segments", "2").option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        query.stop()


def copies(query: StreamingQuery) -> Callable[[], bool]:
    """Whether the query has written a batch that it began after this call; raises its error if it has ended."""
    begun = batch_id(query) + 1  # it may be under way

    def has_copied() -> bool:
        assert query.isActive, query.exception()
        return batch_id(query) > begun

    return has_copied


def batch_id(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def numbers(headrace: Headrace, stream: str) -> list[int]:
    end = headrace.admin.stream_cut(SCOPE, stream)
    with headrace.reader(SCOPE, stream, start="earliest", end=end) as reader:
        return [int(each.event) for each in reader]


def assert_in_order(read: list[int]) -> None:
    """Events of a key are read in the order in which their writer wrote them."""
    written = [each for each in read if each < IN_TRANSACTIONS]
    committed = [each - IN_TRANSACTIONS for each in read if each >= IN_TRANSACTIONS]
    for part in (written, committed):
        for key in range(KEYS):
            of_key = [number for number in part if number % KEYS == key]
            assert of_key == sorted(of_key)


def test_a1_off_to_required_loses_and_repeats_nothing(session: SparkSession, tmp_path: Path, checkpoint: Path) -> None:
    with ExitStack() as parts:
        stack = parts.enter_context(changing_stack(tmp_path / "data", segment_stores=3))
        headrace = parts.enter_context(connect(stack.url))
        headrace.admin.create_scope(SCOPE)
        headrace.admin.create_stream(SCOPE, STREAM, scaling=ScalingPolicy.fixed(4))
        headrace.admin.reader_groups.create(SCOPE, GROUP, ReaderGroupConfiguration((GroupStream(SCOPE, STREAM),)))
        traffic = Traffic(headrace)
        parts.callback(traffic.close)
        members = [Member(stack.url, name) for name in ("first", "second")]
        for member in members:
            parts.callback(member.close)
        query = parts.enter_context(copying(session, stack.url, checkpoint))
        traffic.progress()
        traffic.wait(lambda: all(member.read for member in members) and query.lastProgress is not None)
        assert not headrace.admin.delegation_tokens.demanded
        for mode in (TlsMode.PERMISSIVE, TlsMode.REQUIRED):
            stack.change(mode)
            traffic.progress()
            traffic.wait(copies(query))
        traffic.stop_writing()
        expected = traffic.expected
        traffic.wait(lambda: len(traffic.read) >= expected.total())
        traffic.wait(lambda: sum(len(member.read) for member in members) >= expected.total())
        query.processAllAvailable()
        assert Counter(traffic.read) == expected
        assert Counter(members[0].read + members[1].read) == expected
        assert Counter(numbers(headrace, STREAM)) == expected
        assert Counter(numbers(headrace, "copies")) == expected
        for read in (traffic.read, members[0].read, members[1].read):
            assert_in_order(read)
        assert headrace.admin.delegation_tokens.demanded
        for store in stack.state["segmentStores"]:
            with pytest.raises(UnavailableError):
                BlockingConnection(store["host"], store["port"])
    logs = "".join(path.read_text() for path in (tmp_path / "data").rglob("*.log"))
    # A token is a JSON Web Token: its head begins with `{"` in base64.
    assert [word for word in ("eyJ", "PRIVATE KEY") if word in logs] == []

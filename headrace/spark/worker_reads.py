"""What tasks read with: connections that live as long as the Python worker, which Spark keeps for many tasks.

A client and its connections cost more than reading a small range: three TLS contexts alone take 57 ms of CPU.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event

from headrace.client.headrace import Headrace
from headrace.client.ranges.range_bytes import RangeBytes, StreamRanges, Window
from headrace.client.reading.object_reads import ObjectReads
from headrace.model.errors import HeadraceError, UnavailableError
from headrace.model.stream_cuts import StreamCut
from headrace.spark.client_access import ClientStreamAccess
from headrace.spark.options import ReadOptions
from headrace.spark.partitions import Partition
from headrace.spark.python_workers import shared_client
from headrace.spark.stream_access import PlannedRange

IDLE_S_MAX = 30.0
"""A segment store closes a connection that is idle for longer than a minute."""

_Key = tuple[str, str]


class WorkerReads:
    """Reads ranges of any stream behind one controller. Several threads may use it at once."""

    def __init__(self, options: ReadOptions, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._monotonic_s = monotonic_s
        self._objects = ObjectReads()
        self._idle: dict[_Key, list[tuple[float, StreamRanges]]] = {}
        self._lock = threading.Lock()

    def windows(self, planned: PlannedRange) -> Generator[Window, None, None]:
        """The bytes of a range; raises as `RangeBytes.windows`."""
        part = planned.part
        use_links = self._options.read_history_from == "s3"
        with (
            self._borrowed(part.scope, part.stream) as source,
            RangeBytes(
                source,
                self._objects,
                wait=Event().wait,
                use_links=use_links,
                patience_s=self._options.patience_s,
            ) as reader,
        ):
            if planned.endpoint is not None:
                source.expect(part.segment_id, planned.endpoint)
            if planned.token is not None:
                source.offer(planned.token)
            yield from reader.windows(part.segment_id, part.start, part.end, planned.listing)

    def with_links(self, partition: Partition) -> Partition:
        """The partition with links to S3 where there are none that can be used: one request for all ranges of a stream.

        If that fails, reading the ranges asks for the links of each one, and says what is wrong.
        """
        if self._options.read_history_from != "s3":
            return partition
        now_ms = time.time_ns() // 1_000_000
        lacking: dict[_Key, list[int]] = {}
        for index, one in enumerate(partition):
            if one.listing is None or not one.listing.is_fresh(now_ms):
                lacking.setdefault((one.part.scope, one.part.stream), []).append(index)
        found = list(partition)
        for (scope, stream), indexes in lacking.items():
            if len(indexes) == 1:
                continue  # reading it asks for as many links as are used before they expire
            # What is refused for one range is refused for all of them, for example because it was truncated.
            parts = [partition[index].part for index in indexes]
            try:
                listed = self._access(scope, stream).planned(parts, max(1, *(part.length_bytes for part in parts)))
            except UnavailableError:
                break  # it was waited for: not once more for each stream
            except HeadraceError:
                continue
            for index, new in zip(indexes, listed, strict=True):
                found[index] = replace(found[index], listing=new.listing, endpoint=new.endpoint)
        return tuple(found)

    def head(self, scope: str, stream: str) -> StreamCut:
        """Where a stream begins now."""
        return self._client().admin.stream_cut(scope, stream, at="head")

    def close(self) -> None:
        """Closes the connections that no thread uses."""
        with self._lock:
            sources = [source for idle in self._idle.values() for _, source in idle]
            self._idle.clear()
        for source in sources:
            source.close()
        self._objects.close()

    @contextmanager
    def _borrowed(self, scope: str, stream: str) -> Iterator[StreamRanges]:
        """For one thread; a source that failed or was left early is not used again."""
        source = self._idle_source(scope, stream) or self._new_source(scope, stream)
        try:
            yield source
        except BaseException:
            source.close()
            raise
        with self._lock:
            self._idle.setdefault((scope, stream), []).append((self._monotonic_s(), source))

    def _idle_source(self, scope: str, stream: str) -> StreamRanges | None:
        oldest_s = self._monotonic_s() - IDLE_S_MAX
        with self._lock:
            idle = self._idle.get((scope, stream), [])
            stale = [source for since_s, source in idle if since_s < oldest_s]
            fresh = [entry for entry in idle if entry[0] >= oldest_s]
            found = fresh.pop()[1] if fresh else None
            self._idle[scope, stream] = fresh
        for source in stale:
            source.close()
        return found

    def _new_source(self, scope: str, stream: str) -> StreamRanges:
        return StreamRanges(self._client().admin, scope, stream, give_up_after_s=self._options.patience_s)

    def _access(self, scope: str, stream: str) -> ClientStreamAccess:
        return ClientStreamAccess(
            self._client(), scope, stream, self._options.on_truncation, links=True, ships_tokens=False
        )

    def _client(self) -> Headrace:
        return shared_client(self._options.controller, self._options.auth, self._options.patience_s).client


_reads: dict[tuple[object, ...], WorkerReads] = {}
_lock = threading.Lock()


def worker_reads(options: ReadOptions) -> WorkerReads:
    """Those of this process. They are never closed; connections end with the process."""
    key = (os.getpid(), options.controller, options.auth, options.patience_s, options.read_history_from)
    with _lock:
        found = _reads.get(key)
        if found is None:
            found = _reads[key] = WorkerReads(options)
        return found

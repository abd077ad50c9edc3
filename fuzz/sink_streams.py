"""The two streams of a copy: what is written to `in` and changed meanwhile, and what must be in `out` at the end."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

from headrace.client import Headrace, ScalingPolicy, StreamCut
from headrace.model.errors import NotFoundError

PORTION: Final = 240
KEYS: Final = 7
SEGMENTS_MIN: Final = 2
_EVENTS_PER_APPEND: Final = 30
_EVENT_BYTES: Final = 16
ABORTED_WITHIN_POLLS: Final = 600
_POLL_S: Final = 0.1


class CopiedStreams:
    """The streams `in` and `out` of a scope. Events are numbered; the number gives the key. Not more than one change
    of `in` at a time."""

    def __init__(self, client: Headrace, scope: str) -> None:
        self.written = 0
        self._client, self._scope = client, scope
        self._cuts: list[tuple[int, StreamCut]] = []
        self._writing = threading.Lock()
        client.admin.create_scope(scope)
        client.admin.create_stream(scope, "in", scaling=ScalingPolicy.fixed(SEGMENTS_MIN))

    def write(self, count: int = PORTION) -> None:
        """Appends the next events to `in`, in many appends, because batches end between appends."""
        with self._writing, self._client.writer(self._scope, "in") as writer:
            for first in range(self.written, self.written + count, _EVENTS_PER_APPEND):
                numbers = range(first, min(first + _EVENTS_PER_APPEND, self.written + count))
                writer.write_batch([b"%08d" % number for number in numbers], [str(number % KEYS) for number in numbers])
                writer.flush()
            self.written += count
            self._cuts.append((self.written, self._client.admin.stream_cut(self._scope, "in")))

    def split(self, stream: str = "in") -> None:
        """Replaces the first segment by two halves."""
        first = self._client.admin.segments(self._scope, stream)[0]
        low, high = first.key_range.low, first.key_range.high
        middle = (low + high) / 2
        self._scale(stream, [first.segment_id], [(low, middle), (middle, high)])

    def merge(self, stream: str = "in") -> None:
        """Replaces the first two segments by one; splits before if no more than the smallest number are left."""
        found = sorted(self._client.admin.segments(self._scope, stream), key=lambda segment: segment.key_range.low)
        if len(found) <= SEGMENTS_MIN:
            self.split(stream)
            self.merge(stream)
            return
        first, second = found[:2]
        self._scale(stream, [first.segment_id, second.segment_id], [(first.key_range.low, second.key_range.high)])

    def truncate(self, cut: StreamCut) -> None:
        with self._writing:
            self._client.admin.truncate_stream(self._scope, "in", cut)

    def cut_behind(self, copied: Counter[int]) -> StreamCut | None:
        """The last cut of `in` before which all events are copied; it is used once."""
        passed = [index for index, (count, _) in enumerate(self._cuts) if copied.keys() >= set(range(count))]
        if not passed:
            return None
        cut = self._cuts[passed[-1]][1]
        del self._cuts[: passed[-1] + 1]
        return cut

    def committed_epoch(self, writer: str) -> int | None:
        try:
            return self._client.admin.transactions.committed_epoch(self._scope, "out", writer)
        except NotFoundError:
            return None

    def is_copied(self) -> bool:
        """Whether `out` has as many bytes as were written."""
        try:
            return self._client.admin.stream_cut_distance(self._scope, "out") >= self.written * _EVENT_BYTES
        except NotFoundError:
            return False

    def copied(self) -> Counter[int]:
        return Counter(self._numbers())

    def check(self, *, is_ordered: bool) -> None:
        """Each event once, those of a key in order if that is promised, and no transaction is left.

        Raises:
            AssertionError: it is not so. Aborts of transactions that no task reported run in the background.
        """
        numbers = self._numbers()
        found, wanted = Counter(numbers), Counter(range(self.written))
        if found != wanted:
            missing, too_often = sorted((wanted - found).elements()), sorted((found - wanted).elements())
            raise AssertionError(
                f"{len(missing)} events are missing: {missing[:20]}; {len(too_often)} too often: {too_often[:20]}"
            )
        for key in range(KEYS if is_ordered else 0):
            of_key = [number for number in numbers if number % KEYS == key]
            if of_key != sorted(of_key):
                raise AssertionError(f"events of key {key} are not in order: {of_key}")
        for _ in range(ABORTED_WITHIN_POLLS):
            if not (left := self._client.admin.transactions.list_open(self._scope, "out")):
                return
            threading.Event().wait(_POLL_S)
        raise AssertionError(f"{len(left)} transactions are still open: {[each.label for each in left]}")

    def _numbers(self) -> list[int]:
        try:
            tail = self._client.admin.stream_cut(self._scope, "out", at="latest")
        except NotFoundError:
            return []
        with self._client.reader(self._scope, "out", start="earliest", end=tail) as reader:
            return [int(read.event) for read in reader]

    def _scale(self, stream: str, seal: list[int], ranges: list[tuple[float, float]]) -> None:
        self._client.admin.scale_stream(self._scope, stream, seal=seal, ranges=ranges)

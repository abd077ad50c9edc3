"""The batches of a streaming query: each is the range between two stream cuts, and only the checkpoint holds progress.

What the engines do, and this module has to serve:
- on a first start, Spark 4.0 and 4.1 ask for the latest offset before the initial one, so the start is resolved once
  and remembered;
- they do not say where a batch starts, so `partitions` remembers where it ended; after a restart they call
  `partitions(end, end)` with the newest logged offset before anything else, so that this holds there, too;
- a logged pair of offsets is final: it is planned again after a crash, from the pair alone;
- an error while planning ends the query, so what can pass is waited for (by the stream access);
- while there is nothing to read, the default trigger asks 100 times a second. One thread asks all sources of a query,
  so an idle source answers at once, from memory, until `idle_poll_ms` have passed since it asked the controller.
An offset is one string, the text of a stream cut: thousands of segments stay one JSON string in the checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from headrace.client.ranges.segment_ranges import SegmentRange, joined_ranges
from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.spark.backlogs import Backlogs
from headrace.spark.checkpoints import offset_positions, offset_text
from headrace.spark.concurrent_calls import calls_at_once
from headrace.spark.lost_bytes import log_stream_skipped
from headrace.spark.option_values import invalid_option
from headrace.spark.options import TIME_PREFIX, ReadOptions
from headrace.spark.partitions import Partition
from headrace.spark.plans import STREAMS_AT_ONCE, ReadPlans, StreamPlans, open_plans
from headrace.spark.stream_access import Batch, Positions

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A batch between two offsets, whose ranges are known by stream. `left_bytes` is None if that is not known."""

    start: str
    end: str
    ranges: Mapping[str, Sequence[SegmentRange]]
    left_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Jump:
    """A stream that begins at its head with the next batch, because it is new, or was created again."""

    head: Positions


_Found = Batch | _Jump | None
"""What is next in a stream; None: there is nothing to do."""


class MicroBatches:
    """Where the batches of one query begin and end, and what is in them. Belongs to one thread of the driver.

    It starts others for the requests of several streams, which end with the call. Without `links` the partitions have
    none to S3, see `open_streams`.
    """

    def __init__(
        self, options: ReadOptions, *, links: bool = True, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.options = options
        self._links = links
        self._monotonic_s = monotonic_s
        self._backlogs = Backlogs(monotonic_s=monotonic_s)
        self._plans: ReadPlans | None = None
        self._initial: str | None = None
        self._planned_to: str | None = None
        self._end: Mapping[str, Positions | None] | None = None
        self._past_end: dict[str, Positions] = {}
        self._behind: frozenset[str] = frozenset()
        self._newest: tuple[str, float] | None = None
        self._planned: _Planned | None = None
        self._idle_at: tuple[str, float] | None = None

    def initial(self) -> str:
        """Where a query without a checkpoint starts: the option start_stream_cut, by default the tail."""
        if self._initial is None:
            self._initial = offset_text(self.options, self._opened().starts("latest"))
        return self._initial

    def latest(self, start: str | None, budget_bytes: int | None) -> str:
        """The end of the next batch: about `budget_bytes` after `start`, by default after the last batch.

        Without a budget it is the end of the stream, but for `strict_key_order`.
        """
        plans = self._opened()
        current = start or self._planned_to or self.initial()
        if self._asked_just_now(current):
            return current
        planned = self._plan(plans, current, budget_bytes)
        is_idle = planned.end == current
        self._idle_at = (current, self._monotonic_s()) if is_idle else None
        if not is_idle:
            self._planned = planned
            self._log(planned)
        if planned.left_bytes == 0:
            self._newest = (planned.end, self._monotonic_s())
        return planned.end

    def partitions(self, start: str, end: str) -> list[Partition]:
        """What is between two offsets. A stream that only the second one has begins there."""
        plans = self._opened()
        self._planned_to = end
        if start == end:
            return []
        known = self._planned
        if known is not None and (known.start, known.end) == (start, end):
            try:
                return plans.partitions(known.ranges)
            except HeadraceError as error:
                if not plans.plans_again(error):
                    raise
        starts, ends = offset_positions(self.options, start), offset_positions(self.options, end)
        return plans.partitions_between(starts, ends)

    def end_now(self) -> None:
        """Reads no further than the tail is now, unless the option end_stream_cut names an end."""
        plans = self._opened()
        self._end = plans.with_tails(self._end)

    def newest(self) -> str | None:
        """Where the stream ends, as known from the last batch or asked at most once in `idle_poll_ms`.

        None for several streams, of which each would be a request.
        """
        if len(self.options.streams) != 1:
            return None
        now_s = self._monotonic_s()
        if self._newest is None or now_s - self._newest[1] >= self.options.idle_poll_ms / 1000:
            plans = self._opened()
            self._newest = (offset_text(self.options, plans.with_tails(self._end)), now_s)
        return self._newest[0]

    def close(self) -> None:
        self._backlogs.close()
        if self._plans is not None:
            self._plans.close()
            self._plans = None

    def _opened(self) -> ReadPlans:
        if self._plans is None:
            _check_end(self.options)
            plans = open_plans(self.options, links=self._links)
            self._past_end.clear()
            try:
                self._end = plans.ends("unbounded")
            except BaseException:
                plans.close()  # the next call must ask for the end again, and not read beyond it
                raise
            self._plans = plans
        return self._plans

    def _is_read(self, stream: str) -> bool:
        """A new stream is read unless each that was there at the start has an end."""
        return self._end is None or stream in self._end or None in self._end.values()

    def _asked_just_now(self, current: str) -> bool:
        if self._idle_at is None:
            return False
        idle, at_s = self._idle_at
        return idle == current and self._monotonic_s() - at_s < self.options.idle_poll_ms / 1000

    def _plan(self, plans: ReadPlans, current: str, budget_bytes: int | None) -> _Planned:
        """Each stream gets an equal share of the budget, and of what others leave."""
        positions = offset_positions(self.options, current)
        upcoming, ranges = dict(positions), dict[str, Sequence[SegmentRange]]()
        left_bytes: int | None = 0
        streams = [plans.stream(name) for name in plans.names() if self._is_read(name)]
        self._backlogs.keep(stream.stream for stream in streams)
        behind = set[str]()
        with self._asked_ahead(streams, positions, budget_bytes) as ahead:
            for number, stream in enumerate(streams):
                name = stream.stream
                share = _share_bytes(budget_bytes, len(streams) - number)
                planned = ahead[name](share) if name in ahead else self._next(stream, positions.get(name), share)
                if isinstance(planned, _Jump):
                    upcoming[name], left_bytes = planned.head, None
                if not isinstance(planned, Batch):
                    continue
                upcoming[name], ranges[name] = planned.end, planned.ranges
                if not planned.reached_end:
                    behind.add(name)
                end = None if self._end is None else self._end.get(name)
                left = self._backlogs.behind(name, stream.access, planned, end)
                left_bytes = None if left_bytes is None or left is None else left_bytes + left
                if budget_bytes is not None:
                    budget_bytes = max(1, budget_bytes - _length_bytes(planned))
        self._behind = frozenset(behind)
        # Spark compares offsets as strings, so the same cut must keep its text, even if another version wrote the text.
        text = current if upcoming == positions else offset_text(self.options, upcoming)
        return _Planned(current, text, ranges, left_bytes)

    @contextmanager
    def _asked_ahead(
        self, streams: Sequence[StreamPlans], positions: Mapping[str, Positions], budget_bytes: int | None
    ) -> Iterator[Mapping[str, Callable[[int | None], _Found]]]:
        """What is next in these streams within a share of the budget, asked at once; yields how to get it, by stream.

        The share of a stream is known only when those before it are planned. But a stream that has no more to read than
        its share has the same batch with each larger one, so that it can be asked for an equal share before. A stream
        that has more is asked again. Those that had more in the last batch are therefore left out here.
        """
        share = _share_bytes(budget_bytes, len(streams))
        asked = [stream for stream in streams if budget_bytes is None or stream.stream not in self._behind]
        asked = asked if len(streams) > 1 else []

        def settle(stream: StreamPlans, call: Future[_Found], own_share: int | None) -> _Found:
            planned = call.result()
            if not isinstance(planned, Batch) or own_share is None or own_share == share:
                return planned
            if planned.reached_end and _length_bytes(planned) <= own_share:
                return planned
            return self._next(stream, planned.start, own_share)  # bytes that are lost before this start are logged

        def ask(stream: StreamPlans) -> _Found:
            return self._next(stream, positions.get(stream.stream), share)

        with calls_at_once(ask, asked, STREAMS_AT_ONCE) as calls:
            yield {stream.stream: partial(settle, stream, call) for stream, call in zip(asked, calls, strict=True)}

    def _next(self, stream: StreamPlans, start: Positions | None, share_bytes: int | None) -> _Found:
        """Runs in several threads at once, for different streams."""
        if start is None:  # A new stream begins at its head, where the next batch finds it.
            return _Jump(stream.access.cut("earliest"))
        try:
            return self._next_batch(stream, start, share_bytes)
        except InvalidRequestError as error:
            if not (self.options.skips_deleted_streams and error.specific_code == "stream_recreated"):
                raise
            head = stream.access.cut("earliest")
            if head != start:
                log_stream_skipped(self.options.scope, stream.stream)
            return _Jump(head)

    def _next_batch(self, plans: StreamPlans, start: Positions, budget_bytes: int | None) -> Batch | None:
        """None: there is nothing to do, because the end to read up to is reached or before the start."""
        end = None if self._end is None else self._end.get(plans.stream)
        if start in (end, self._past_end.get(plans.stream)):
            return None
        strict = self.options.strict_key_order
        try:
            batch = plans.access.next_batch(start, end, bytes_max=budget_bytes, strict_key_order=strict)
        except InvalidRequestError as error:
            if end is None or error.specific_code != "invalid_stream_cut" or not plans.access.is_before(end, start):
                raise
            self._past_end[plans.stream] = start
            return None
        if budget_bytes is not None or strict or batch.reached_end:
            return batch
        end = plans.access.cut("latest") if end is None else end
        ranges = joined_ranges([*batch.ranges, *plans.access.between(batch.end, end)])
        return replace(batch, ranges=ranges, end=end, reached_end=True, left_bytes=0)

    def _log(self, planned: _Planned) -> None:
        _log.info(
            "event=spark_batch_planned streams=%r batch_bytes=%d left_bytes=%s",
            self.options.named(),
            sum(part.length_bytes for ranges in planned.ranges.values() for part in ranges),
            planned.left_bytes,
        )


def _share_bytes(budget_bytes: int | None, streams: int) -> int | None:
    return None if budget_bytes is None else max(1, budget_bytes // streams)


def _length_bytes(batch: Batch) -> int:
    return sum(part.length_bytes for part in batch.ranges)


def _check_end(options: ReadOptions) -> None:
    """Refuses an end in the future, which has no stream cut yet."""
    end = options.end_stream_cut or ""
    if end.startswith(TIME_PREFIX) and int(end.removeprefix(TIME_PREFIX)) > time.time() * 1000:
        raise invalid_option(
            "end_stream_cut",
            "the end of a streaming query cannot be in the future, because no stream cut at that time is known yet:"
            " give a time that has passed, or stop the query",
        )

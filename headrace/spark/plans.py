"""What batch and streaming reads share in the driver: options resolved to cuts, cuts to partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from headrace.client.ranges.segment_ranges import SegmentRange, ranges_to_read
from headrace.model.errors import HeadraceError, TruncatedError
from headrace.model.stream_cuts import END_OF_SEGMENT
from headrace.spark.checkpoints import offset_text, option_for_stream
from headrace.spark.client_access import open_streams
from headrace.spark.concurrent_calls import results_at_once
from headrace.spark.lost_bytes import is_stream_gone, log_stream_skipped
from headrace.spark.options import TIME_PREFIX, ReadOptions
from headrace.spark.partitions import Partition, pack_pieces, piece_bytes
from headrace.spark.range_filters import EVERYTHING, RangeFilter
from headrace.spark.stream_access import At, Positions, StreamAccess, Streams

REPEATS_MAX = 3
"""A plan takes less than a second, and retention truncates once in minutes."""

STREAMS_AT_ONCE: Final = 8
"""Streams of a read whose requests run at once. Each takes a thread, and one of the client's 20 connections."""

R = TypeVar("R")


class StreamPlans:
    """The stream cuts of one stream. Never pickled."""

    def __init__(self, options: ReadOptions, stream: str, access: StreamAccess) -> None:
        self.options = options
        self.stream = stream
        self.access = access

    def start_cut(self, default: str) -> Positions:
        """Where the option start_stream_cut says; `default` is what it means when it is not given."""
        word = option_for_stream(self.options.start_stream_cut, self.stream) or default
        return self._resolve(word, "latest" if word == "latest" else "earliest")

    def end_cut(self, default: str) -> Positions | None:
        """Where the option end_stream_cut says, "latest" as of now; None: never ends."""
        word = option_for_stream(self.options.end_stream_cut, self.stream) or default
        return None if word == "unbounded" else self._resolve(word, "latest")

    def _resolve(self, word: str, at: At) -> Positions:
        if word in ("earliest", "latest", "unbounded"):
            return self.access.cut(at)
        if word.startswith(TIME_PREFIX):
            return self.access.cut_at(int(word.removeprefix(TIME_PREFIX)))
        cut = self.access.cut_of_text(word)
        return self.access.next_batch(cut, cut).start if END_OF_SEGMENT in cut.values() else cut


class ReadPlans:
    """The cuts and partitions of all streams of a read. Keeps connections open; never pickled.

    The requests of different streams run at once. If several fail, the error is that of the first stream.
    """

    def __init__(self, options: ReadOptions, streams: Streams, wanted: RangeFilter = EVERYTHING) -> None:
        self.options = options
        self._streams = streams
        self._wanted = wanted
        self._plans: dict[str, StreamPlans] = {}

    def names(self) -> tuple[str, ...]:
        """The streams to read; with a pattern those that there are now."""
        options = self.options
        names: Iterable[str] = options.streams
        if not names:
            names = (summary.stream for summary in self._streams.summaries(options.scope, options.stream_pattern or ""))
        return tuple(name for name in names if self._wanted.takes_stream(options.scope, name))

    def stream(self, name: str) -> StreamPlans:
        plans = self._plans.get(name)
        if plans is None:
            plans = StreamPlans(self.options, name, self._streams.stream(self.options.scope, name))
            self._plans[name] = plans
        return plans

    def starts(self, default: str) -> dict[str, Positions]:
        """The start of each stream, see `StreamPlans.start_cut`."""
        return self._of_each(self.names(), lambda stream: stream.start_cut(default))

    def ends(self, default: str) -> dict[str, Positions | None] | None:
        """The end of each stream that there is now, see `StreamPlans.end_cut`; None: no stream ever ends."""
        if (self.options.end_stream_cut or default) == "unbounded":
            return None
        return self._of_each(self.names(), lambda stream: stream.end_cut(default))

    def ends_now(self) -> dict[str, Positions]:
        """The end of each stream, by default and instead of none the tail."""
        return self.with_tails(self.ends("latest"))

    def with_tails(self, ends: Mapping[str, Positions | None] | None) -> dict[str, Positions]:
        """The ends that `ends` returned, with the tails as of now where streams never end."""
        known = {} if ends is None else {name: end for name, end in ends.items() if end is not None}
        unknown = [name for name in (self.names() if ends is None else ends) if name not in known]
        return known | self._of_each(unknown, lambda stream: stream.access.cut("latest"))

    def partitions(self, ranges: Mapping[str, Sequence[SegmentRange]]) -> list[Partition]:
        """The ranges of a batch by stream, split and packed for the tasks."""
        parts = self._of_each(ranges, lambda stream: self._to_read(stream, ranges[stream.stream]))
        total_bytes = sum(part.length_bytes for own in parts.values() for part in own)
        tasks = self.options.parallelism
        most = piece_bytes(total_bytes, tasks, self.options.max_partition_bytes)
        filled = [name for name, own in parts.items() if own]
        planned = self._of_each(filled, lambda stream: stream.access.planned(parts[stream.stream], most))
        pieces = [piece for own in planned.values() for piece in own]
        return pack_pieces(pieces, total_bytes, tasks, most)

    def _of_each(self, names: Iterable[str], ask: Callable[[StreamPlans], R]) -> dict[str, R]:
        """What the controller answers for each of these streams, in their order."""
        streams = [self.stream(name) for name in names]
        answers = results_at_once(ask, streams, STREAMS_AT_ONCE)
        return {stream.stream: answer for stream, answer in zip(streams, answers, strict=True)}

    def _to_read(self, stream: StreamPlans, ranges: Sequence[SegmentRange]) -> Sequence[SegmentRange]:
        """The ranges that hold bytes that are wanted."""
        parts = self._wanted.of_ranges(ranges_to_read(ranges))
        low, high = self._wanted.offsets
        return stream.access.bounded(parts, low, high)

    def partitions_between(self, starts: Mapping[str, Positions], ends: Mapping[str, Positions]) -> list[Partition]:
        """The partitions of a batch that is known by its cuts alone. A stream without both has nothing in it."""
        moved = [name for name in ends if name in starts and starts[name] != ends[name]]
        repeats = 0
        while True:
            ranges = self._of_each(
                moved, lambda stream: self._between(stream, starts[stream.stream], ends[stream.stream])
            )
            try:
                return self.partitions(ranges)
            except HeadraceError as error:
                repeats += 1
                if repeats > REPEATS_MAX or not self.plans_again(error):
                    raise

    def plans_again(self, error: HeadraceError) -> bool:
        """Whether a batch is planned again from its cuts after an error that came from the ranges between them.

        That leaves out what was truncated meanwhile, or else fails with all that is lost, which the cuts alone tell.
        """
        is_skipped = self.options.skips_deleted_streams and is_stream_gone(error)
        return is_skipped or isinstance(error, TruncatedError)

    def _between(self, stream: StreamPlans, start: Positions, end: Positions) -> Sequence[SegmentRange]:
        try:
            return stream.access.between(start, end)
        except HeadraceError as error:
            if not (self.options.skips_deleted_streams and is_stream_gone(error)):
                raise
            log_stream_skipped(self.options.scope, stream.stream)
            return ()

    def batch_partitions(self) -> list[Partition]:
        """The partitions of a batch read: between the options' cuts, by default all that is there now."""
        return self.partitions_between(self.starts("earliest"), self.ends_now())

    def end_text(self) -> str:
        """The offset at the end of a read that starts now."""
        return offset_text(self.options, self.ends_now())

    def close(self) -> None:
        self._streams.close()


def open_plans(options: ReadOptions, wanted: RangeFilter = EVERYTHING, *, links: bool = True) -> ReadPlans:
    """Plans of the rows that are wanted, on a connection of their own; close them when done. See `open_streams`."""
    return ReadPlans(options, open_streams(options, links=links), wanted)

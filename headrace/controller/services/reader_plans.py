"""What a reader needs to plan a batch with two requests: the next stream cut, and plans for ranges of segments.

A cut comes with the ranges up to it. A plan for many ranges has their pieces, links to their bytes in S3, and the
stores of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.api.plans import (
    Chunk,
    LostBytes,
    NextCutView,
    OnTruncation,
    PlannedPiece,
    RangePlan,
    RangePlans,
    RangeToPlan,
)
from headrace.api.segments import RangesBetween, SegmentEndpoint
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.controller.services.endpoints import endpoints_in
from headrace.controller.services.history import ChunkRuns, StoredRuns, linked_chunk
from headrace.controller.services.segment_lineage import NotLoadedError, SegmentLineage, moved_to_head
from headrace.controller.services.segment_service import created_stream, range_between
from headrace.controller.services.stream_ends import SegmentStarts, StreamEnds
from headrace.metadata.cluster_records import find_claims
from headrace.metadata.placed_cuts import PlacedCuts, check_incarnation
from headrace.metadata.stream_records import StreamRecords
from headrace.model.chunks import ChunkRun
from headrace.model.cut_planning import BatchRules, PlannedBatch, plan_batch
from headrace.model.errors import InvalidRequestError, NotFoundError, TruncatedError, UnavailableError
from headrace.model.external_access import Network
from headrace.model.limits import (
    EPOCHS_BETWEEN_MAX,
    LINK_BYTES_PER_PLAN_MAX,
    LINKS_PER_PLAN_MAX,
    PAGE_ITEMS_MAX,
    PIECES_PER_PLAN_MAX,
    RANGES_PER_PLAN_MAX,
    SEGMENTS_PER_CUT_MAX,
)
from headrace.model.log_classes import ContainerLayout
from headrace.model.names import segment_name
from headrace.model.segments import segment_epoch
from headrace.model.stream_cut_ranges import pieces_at_best, split_pieces, split_targets
from headrace.model.stream_cuts import (
    CutOrder,
    PlacedCut,
    Side,
    StreamCut,
    compare_cuts,
    invalid_cut,
    later_cut,
    side_of,
)
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation
from headrace.ports.chunk_storage import ChunkLinks
from headrace.ports.metadata_store import MetadataStore
from headrace.ports.segment_stores import SegmentStores
from headrace.ports.workers import Workers

LOST_SHOWN_MAX = 100
"""Truncated ranges in the details of an error."""


class NextCutService:
    """Called by the route of next cuts; safe for any number of threads. It only reads.

    A plan reads the stream with its truncation, the epochs and the ends of the sealed segments that the batch passes,
    in batches, and makes at most two calls to the segment stores: for the lengths of all active segments, and for the
    event boundaries. While the stream scales there is a third, for the segments that are being sealed.
    """

    def __init__(self, store: MetadataStore, segment_stores: SegmentStores) -> None:
        self._records = StreamRecords(store)
        self._history = self._records.history
        self._cuts = PlacedCuts(self._history)
        self._ends = StreamEnds(self._history, segment_stores)
        self._segment_stores = segment_stores

    def next_cut(
        self,
        scope: str,
        stream: str,
        from_offsets: Mapping[int, int] | None,
        to_offsets: Mapping[int, int] | None = None,
        bytes_max: int | None = None,
        *,
        strict_key_order: bool = False,
        on_truncation: OnTruncation = "fail",
    ) -> NextCutView:
        """The batch after the first cut, of about `bytes_max` bytes, at most up to the second one.

        None means the head, the tail, and everything. With `on_truncation` "skip" both cuts are moved forward to the
        head where they are before it: what is left of the range between them is planned. They also are if nothing was
        lost: the start is at the ends of segments that were replaced and then truncated.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: code "invalid_stream_cut" or "stream_recreated"; or `bytes_max` is not positive.
            TruncatedError: bytes after the first cut were truncated, and `on_truncation` is "fail".
            UnavailableError: the stream is being created or scaled; repeat.
        """
        if bytes_max is not None and bytes_max < 1:
            raise InvalidRequestError(f"a batch has at least one byte, not {bytes_max}")
        stored, truncation = self._records.get_with_truncation(scope, stream)
        current = created_stream(stored.stream)
        start = self._ends.head(current, truncation) if from_offsets is None else self._placed(current, from_offsets)
        end = None if to_offsets is None else self._placed(current, to_offsets)
        if end is not None and compare_cuts(end, start) is not CutOrder.EQUAL_OR_AFTER:
            raise invalid_cut("'to' is before 'from'")
        lost: tuple[LostBytes, ...] = ()
        lost_bytes: int | None = 0
        if truncation is not None and compare_cuts(start, truncation.head) is not CutOrder.EQUAL_OR_AFTER:
            start, lost, lost_bytes = moved_to_head(self._lineage, current, start, truncation)
            if on_truncation == "fail" and lost_bytes != 0:
                raise _truncated(current, truncation, lost, lost_bytes)
            end = None if end is None else later_cut(end, truncation.head)
        batch, left_bytes = self._plan(current, start, end, bytes_max, strict_key_order)
        reached = StreamCut.of(current.scope, current.name, batch.positions)
        ranges = tuple(range_between(current, span) for span in batch.ranges)
        return NextCutView(
            **RangesBetween.between(start.cut, reached, ranges).fields(),
            reached_end=batch.reached_end,
            left_bytes=left_bytes,
            lost=lost,
            lost_bytes=lost_bytes,
        )

    def _placed(self, stream: Stream, offsets: Mapping[int, int]) -> PlacedCut:
        cut = self._cuts.resolved(stream, offsets, self._ends.stored_sizes)
        placed = self._cuts.place(stream, cut)
        self._cuts.check_ends(stream, cut)
        return placed

    def _plan(
        self, stream: Stream, start: PlacedCut, end: PlacedCut | None, bytes_max: int | None, strict_key_order: bool
    ) -> tuple[PlannedBatch, int | None]:
        """The batch, and the bytes that it leaves up to the end, None if that takes a longer walk."""
        lineage = self._lineage(stream, end)
        # `SegmentService.between` must be able to walk from one cut to the other.
        last_epoch = self._cuts.first_epoch(stream, start.cut) + EPOCHS_BETWEEN_MAX - 1
        rules = BatchRules(bytes_max, strict_key_order, SEGMENTS_PER_CUT_MAX, last_epoch)
        batch = plan_batch(start.segments, start.cut.offsets, lineage, rules)
        if batch.reached_end:
            if end is not None and batch.positions != end.cut.offsets:
                raise invalid_cut("'to' is not a cut to which reading from 'from' comes")
            return batch, 0
        try:
            return batch, plan_batch(batch.segments, batch.positions, lineage.loaded(), BatchRules()).length_bytes
        except NotLoadedError:
            return batch, None

    def _lineage(self, stream: Stream, end: PlacedCut | None) -> SegmentLineage:
        cut = None if end is None else end.cut
        return SegmentLineage(self._history, self._ends, self._segment_stores, stream, cut)


def _truncated(
    stream: Stream, truncation: Truncation, lost: tuple[LostBytes, ...], lost_bytes: int | None
) -> TruncatedError:
    amount = "bytes" if lost_bytes is None else f"{lost_bytes} bytes"
    first = f", the first at {lost[0].offset} of segment {lost[0].segment_id}" if lost else ""
    return TruncatedError(
        f"stream {stream.scoped_name} was truncated beyond this cut: {amount} are lost{first}. Choose a cut that is not"
        " before the head, or skip what is lost",
        details={
            "head": {str(segment): offset for segment, offset in truncation.cut.positions},
            "headText": stream_cut_text(truncation.cut),
            "lost": [each.to_json() for each in lost[:LOST_SHOWN_MAX]],
            "lostBytes": lost_bytes,
        },
    )


DIRECTORIES_AT_ONCE = 64
"""Ranges whose chunk directories are read before it is known whether the answer has room for more links."""

LINK_OVERHEAD_BYTES = 160
"""The JSON of a link but for its URL, rounded up."""


class RangePlanService:
    """Called by the route of range plans; safe for any number of threads. It only reads.

    A plan reads the stream, the ends of sealed segments and the claims of containers in batches of a hundred, and asks
    the segment stores for all split points at once. It reads the chunk directories of several segments at a time, with
    one or two queries for each range, as long as the answer has room for links. Then it asks the stores at once where
    the segments with links start.
    """

    def __init__(
        self,
        store: MetadataStore,
        segment_stores: SegmentStores,
        links: ChunkLinks,
        workers: Workers,
        container_count: int,
        s3_containers: int = 0,
    ) -> None:
        self._store = store
        self._records = StreamRecords(store)
        self._history = self._records.history
        self._ends = StreamEnds(self._history, segment_stores)
        self._segment_stores = segment_stores
        self._runs = ChunkRuns(store)
        self._starts = SegmentStarts(segment_stores)
        self._links = links
        self._workers = workers
        self._layout = ContainerLayout(container_count, s3_containers)

    def plan(
        self,
        scope: str,
        stream: str,
        ranges: Sequence[RangeToPlan],
        *,
        links: bool = True,
        network: Network = Network.VPC,
    ) -> RangePlans:
        """The plans of the ranges, in their order; without `links` no piece has any. `network` is that of the reader.

        Raises:
            NotFoundError: there is no such stream, or it never had one of the segments.
            InvalidRequestError: there are too many ranges or pieces, two ranges overlap, a range is empty or ends
                after its segment; or code "stream_recreated".
            TruncatedError: bytes of a range were truncated.
            UnavailableError: a store does not answer, or the stream is being created or truncated; repeat.
        """
        _check_request(ranges)
        stored, truncation = self._records.get_with_truncation(scope, stream)
        current = created_stream(stored.stream)
        self._check_readable(current, truncation, ranges)
        pieces = self._pieces(current, ranges)
        endpoints = self._endpoints(current, ranges, network)
        planned = (
            self._linked(current, ranges, pieces) if links else [[PlannedPiece(*each) for each in of] for of in pieces]
        )
        return RangePlans(
            tuple(
                RangePlan(segment_range.segment_id, tuple(own), endpoints.get(segment_range.segment_id))
                for segment_range, own in zip(ranges, planned, strict=True)
            )
        )

    def _check_readable(self, stream: Stream, truncation: Truncation | None, ranges: Sequence[RangeToPlan]) -> None:
        """Check that the segments exist, that those that are sealed are long enough, and that nothing is truncated."""
        identifiers = list(dict.fromkeys(span.segment_id for span in ranges))
        check_incarnation(stream, identifiers)
        newest = {newest_segment.segment_id: newest_segment for newest_segment in self._ends.newest_segments(stream)}
        sealed = self._history.sealed_segments(
            stream, [identifier for identifier in identifiers if identifier not in newest]
        )
        unknown = [identifier for identifier in identifiers if identifier not in newest and identifier not in sealed]
        if unknown:
            raise NotFoundError(
                f"stream {stream.scoped_name} never had segment {unknown[0]}", details={"segmentId": unknown[0]}
            )
        for span in ranges:
            if span.segment_id in sealed and span.end > sealed[span.segment_id].length:
                raise InvalidRequestError(
                    f"segment {span.segment_id} ends at {sealed[span.segment_id].length}, before {span.end}",
                    details={"segmentId": span.segment_id, "length": sealed[span.segment_id].length},
                )
        if truncation is None:
            return
        head = truncation.cut.offsets
        known_gone = {
            identifier
            for identifier, end in sealed.items()
            if end.replaced_in is not None and end.replaced_in <= truncation.first_epoch
        }
        # Segments with a later epoch than the head's are after it.
        undecided = {
            identifier
            for identifier in identifiers
            if identifier not in head
            and identifier not in known_gone
            and segment_epoch(identifier) <= truncation.cut.last_epoch
        }
        numbers = sorted({segment_epoch(each) for each in undecided})
        segments = {
            segment.segment_id: segment for epoch in self._history.epochs(stream, numbers) for segment in epoch.segments
        }
        gone = known_gone | {each for each in undecided if side_of(segments[each], truncation.head) is Side.BEFORE}
        for span in ranges:
            if span.segment_id in gone or span.start < head.get(span.segment_id, 0):
                raise TruncatedError(
                    f"bytes of segment {span.segment_id} from {span.start} on were truncated: plan from the head of"
                    f" stream {stream.scoped_name}",
                    details={"segmentId": span.segment_id, "offset": span.start},
                )

    def _pieces(self, stream: Stream, ranges: Sequence[RangeToPlan]) -> list[list[tuple[int, int]]]:
        targets = [
            (span.segment_id, target)
            for span in ranges
            for target in split_targets(span.start, span.end, span.piece_bytes)
        ]
        named = [(segment_name(stream.scope, stream.name, identifier), target) for identifier, target in targets]
        try:
            located = self._segment_stores.locate_offsets(named) if named else []
        except NotFoundError as gone:
            raise _changing(stream, gone) from gone
        boundaries = dict(zip(targets, located, strict=True))
        return [
            list(split_pieces(span.start, span.end, span.piece_bytes, _Boundaries(boundaries, span).after))
            for span in ranges
        ]

    def _endpoints(self, stream: Stream, ranges: Sequence[RangeToPlan], network: Network) -> dict[int, SegmentEndpoint]:
        """The endpoints by segment id; segments whose container no store has claimed are left out."""
        containers = {
            span.segment_id: self._layout.container_of_segment(segment_name(stream.scope, stream.name, span.segment_id))
            for span in ranges
        }
        endpoints = endpoints_in(network, self._store, find_claims(self._store, containers.values()))
        return {
            identifier: endpoints[container] for identifier, container in containers.items() if container in endpoints
        }

    def _linked(
        self, stream: Stream, ranges: Sequence[RangeToPlan], pieces: Sequence[Sequence[tuple[int, int]]]
    ) -> list[list[PlannedPiece]]:
        """The pieces with links, in their order, until the answer is full; the rest has none."""
        room = _LinkRoom()
        planned: list[list[PlannedPiece]] = []
        linked: list[RangeToPlan] = []
        for first in range(0, len(ranges), DIRECTORIES_AT_ONCE):
            wave = range(first, min(first + DIRECTORIES_AT_ONCE, len(ranges)))
            stored = {} if room.is_full else self._stored(stream, ranges, wave, room.links)
            linked += (ranges[index] for index, runs_stored in stored.items() if runs_stored.runs)
            for index in wave:
                runs = stored.get(index)
                planned.append([self._linked_piece(start, end, runs, room) for start, end in pieces[index]])
        self._check_starts(stream, linked)
        return planned

    def _stored(self, stream: Stream, ranges: Sequence[RangeToPlan], wave: range, limit: int) -> dict[int, StoredRuns]:
        """What the chunk directories have of some of the ranges. Those that are being rewritten are left out."""
        stored: dict[int, StoredRuns] = {}

        def read(index: int) -> None:
            wanted = ranges[index]
            name = segment_name(stream.scope, stream.name, wanted.segment_id)
            runs: list[ChunkRun] = []
            reached, complete = wanted.start, False
            while not complete and len(runs) < limit:
                try:
                    page = self._runs.read(name, reached, wanted.end, min(limit - len(runs), PAGE_ITEMS_MAX))
                except UnavailableError:
                    break
                runs += page.runs
                reached, complete = page.stored_until, page.is_complete
            stored[index] = StoredRuns(tuple(runs), reached, complete)

        self._workers.each(read, iter(wave))
        return stored

    def _check_starts(self, stream: Stream, linked: Sequence[RangeToPlan]) -> None:
        """Check that none of the ranges begins before the start that its segment has now."""
        offsets: dict[str, int] = {}
        for segment in linked:
            name = segment_name(stream.scope, stream.name, segment.segment_id)
            offsets[name] = min(segment.start, offsets.get(name, segment.start))
        try:
            self._starts.check(offsets)
        except NotFoundError as gone:
            raise _changing(stream, gone) from gone

    def _linked_piece(self, start: int, end: int, stored: StoredRuns | None, room: _LinkRoom) -> PlannedPiece:
        if stored is None or room.is_full or (stored.stored_until < end and not stored.is_complete):
            return PlannedPiece(start, end)
        chunks = room.fill(linked_chunk(self._links, run) for run in _clipped(stored.runs, start, end))
        if chunks is None:
            return PlannedPiece(start, end)
        return PlannedPiece(start, end, chunks, max(start, min(stored.stored_until, end)))


@dataclass(frozen=True, slots=True)
class _Boundaries:
    """The boundaries that were located for one range."""

    located: dict[tuple[int, int], int]
    planned_range: RangeToPlan

    def after(self, target: int) -> int:
        """The boundary for a target; the end of the range if the store knows of no byte at the target."""
        offset = self.located[self.planned_range.segment_id, target]
        return offset if offset >= target else self.planned_range.end


class _LinkRoom:
    """The links for which the answer has room."""

    def __init__(self) -> None:
        self.links = LINKS_PER_PLAN_MAX
        self._left_bytes = LINK_BYTES_PER_PLAN_MAX

    @property
    def is_full(self) -> bool:
        return self.links <= 0 or self._left_bytes <= 0

    def fill(self, chunks: Iterator[Chunk]) -> tuple[Chunk, ...] | None:
        """All these chunks, which are signed one by one. None if the answer is full before the last of them."""
        taken: list[Chunk] = []
        for chunk in chunks:
            self.links -= 1
            self._left_bytes -= len(chunk.url) + LINK_OVERHEAD_BYTES
            if self.links < 0 or self._left_bytes < 0:
                return None
            taken.append(chunk)
        return tuple(taken)


def _changing(stream: Stream, gone: NotFoundError) -> UnavailableError:
    return UnavailableError(
        f"stream {stream.scoped_name} is being truncated or deleted: repeat soon", details=gone.details
    )


def _clipped(runs: Sequence[ChunkRun], start: int, end: int) -> Iterator[ChunkRun]:
    """The parts of contiguous runs that are inside [start, end)."""
    for run in runs:
        first, last = max(run.offset, start), min(run.end, end)
        if first < last:
            yield ChunkRun(first, last - first, run.object_name, run.position + first - run.offset)


def _check_request(ranges: Sequence[RangeToPlan]) -> None:
    if not 1 <= len(ranges) <= RANGES_PER_PLAN_MAX:
        raise InvalidRequestError(f"a request plans 1 to {RANGES_PER_PLAN_MAX} ranges, not {len(ranges)}")
    for span in ranges:
        if (
            not 0 <= span.start < span.end
            or span.segment_id < 0
            or (span.piece_bytes is not None and span.piece_bytes < 1)
        ):
            raise InvalidRequestError(
                f"[{span.start}, {span.end}) of segment {span.segment_id} in pieces of {span.piece_bytes} bytes is not"
                " a range to plan"
            )
    pieces = sum(pieces_at_best(span.start, span.end, span.piece_bytes) for span in ranges)
    if pieces > PIECES_PER_PLAN_MAX:
        raise InvalidRequestError(
            f"the ranges would have {pieces} pieces: one request has at most {PIECES_PER_PLAN_MAX}, so plan fewer"
            " ranges at a time or larger pieces"
        )
    for former, other in pairwise(sorted(ranges, key=lambda span: (span.segment_id, span.start))):
        if former.segment_id == other.segment_id and other.start < former.end:
            end = min(former.end, other.end)
            raise InvalidRequestError(
                f"two ranges of segment {former.segment_id} overlap between {other.start} and {end}",
                details={"segmentId": former.segment_id},
            )

"""Moves the states of reader groups back to what tier 2 has of their streams, after a restore.

The readers of a group keep their state in a stream of its own. In tier 2 it may be some seconds newer than the streams
that the group reads, or older. So a position in it may be behind the end of its segment, and the group would skip the
events that are written there next. It also names readers, all of which have ended, since stores and clients have.

The restore appends an entry to the stream in tier 2, as a reader appends one through a store: clients find it when they
read the state. The store that opens the container next finds its bytes in the chunk directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.codec.events import frame_event, split_events
from headrace.codec.group_state import parse_state, parse_update, update_bytes
from headrace.codec.stored_objects import InitialEntry, UpdatesEntry, entry_bytes, parse_entry
from headrace.metadata.restoration import RestoredContainer
from headrace.metadata.restored_positions import RestoredPositions
from headrace.metadata.stream_records import StreamRecords
from headrace.model.chunks import ChunkRun, packed_name
from headrace.model.errors import CorruptError, IllegalStateError
from headrace.model.group_state import GroupState, Positions, restored_state
from headrace.model.group_updates import ReplaceState
from headrace.model.log_classes import ContainerLayout
from headrace.model.names import StreamSegmentName, segment_name
from headrace.model.reader_groups import ReaderGroup
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.segmentstore.tiering.chunk_directory import RUNS_PER_PAGE, ChunkDirectory
from headrace.segmentstore.tiering.owner_writes import put_once

STATE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of the stream of a state that is read. Readers compact it when it has grown by half a mebibyte."""


@dataclass(frozen=True, slots=True)
class TieredState:
    """The state of a group as tier 2 has it, and the segment that it is in, which ends at `end`."""

    group: ReaderGroup
    segment: str
    end: int
    state: GroupState

    def restored(self, positions: RestoredPositions) -> GroupState:
        """The state that the group is to have. Raises as `RestoredPositions.move_back`."""
        return restored_state(self.state, _limits(self.state, positions), self.group.generation)


class GroupStates:
    """Reads the states of reader groups from tier 2, which must not change meanwhile."""

    def __init__(self, store: MetadataStore, chunks: ChunkStorage, clock: Clock, layout: ContainerLayout) -> None:
        self._store, self._chunks, self._clock = store, chunks, clock
        self._streams = StreamRecords(store)
        self._layout = layout

    def container(self, segment: str) -> int:
        """The container of a segment."""
        return self._layout.container_of_segment(segment)

    def directory(self, segment: str, epoch: int = 0) -> ChunkDirectory:
        """The directory of a segment's container. Only one with the epoch of the claim can write."""
        return ChunkDirectory(self._store, self.container(segment), epoch, self._clock)

    def load(self, group: ReaderGroup) -> TieredState | None:
        """The state of a group; None if tier 2 has none, so that its first reader begins as the group is configured.

        Raises:
            CorruptError: it cannot be read.
            ThrottledError, UnavailableError: tier 2 does not answer.
        """
        stored = self._streams.find(group.scope, group.state_stream)
        if stored is None or stored.stream.is_deleting:
            return None
        segments = stored.stream.epoch.segments
        if len(segments) > 1:
            raise CorruptError(f"{stored.stream.scoped_name} has more than one segment: it is not that of a state")
        name = segment_name(group.scope, group.state_stream, segments[0].segment_id)
        data, end = asyncio.run(self._read(name))
        state = _state_of(data, name)
        return None if state is None else TieredState(group, name, end, state)

    async def _read(self, segment: str) -> tuple[bytes, int]:
        """The bytes of a segment, and the offset behind the last one."""
        directory, parts, end, size = self.directory(segment), list[bytes](), 0, 0
        while True:
            runs = await directory.page(segment, first=end)
            for run in runs:
                if parts and run.offset != end:
                    raise CorruptError(f"the chunk directory has nothing of {segment} from {end} to {run.offset}")
                if size + run.length > STATE_BYTES_MAX:
                    raise CorruptError(f"{segment} has more than {STATE_BYTES_MAX} bytes")
                parts.append(await self._chunks.read(run.object_name, run.position, run.length))
                end, size = run.end, size + run.length
            if len(runs) < RUNS_PER_PAGE:
                return b"".join(parts), end


def restore_group_states(
    states: GroupStates,
    groups: Iterable[ReaderGroup],
    positions: RestoredPositions,
    restored: Mapping[int, RestoredContainer],
    chunks: ChunkStorage,
) -> int:
    """Write the restored state of each group whose state differs from it. Returns how many were written.

    A state that cannot be read stays as it is: `verify` names it, and a reset of the group would fail, too. Names of
    objects depend on the groups only, so that a repetition writes the same bytes under them.

    Raises:
        FencedError: a store has claimed a container.
        ThrottledError, UnavailableError: DynamoDB or S3 does not answer.
    """
    written = 0
    for number, group in enumerate(sorted(groups, key=lambda each: (each.scope, each.name)), start=1):
        try:
            tiered = states.load(group)
            wanted = None if tiered is None else tiered.restored(positions)
        except CorruptError:
            continue
        if tiered is None or wanted is None or wanted == tiered.state:
            continue
        container = restored[states.container(tiered.segment)]
        data = frame_event(entry_bytes(UpdatesEntry([update_bytes(ReplaceState(wanted))])))
        name = packed_name(container.container, container.epochs.pointer, number)
        asyncio.run(_append(states, tiered, ChunkRun(tiered.end, len(data), name, 0), data, container, chunks))
        written += 1
    return written


async def _append(
    states: GroupStates,
    tiered: TieredState,
    run: ChunkRun,
    data: bytes,
    container: RestoredContainer,
    chunks: ChunkStorage,
) -> None:
    await put_once(chunks, run.object_name, [data])
    directory = states.directory(tiered.segment, container.epochs.claim)
    await directory.add([(tiered.segment, run)], {run.object_name: run.length})


def _limits(state: GroupState, positions: RestoredPositions) -> Positions:
    """The ends of the segments that a state names."""
    named: dict[tuple[str, str], set[int]] = {}
    for segment in _segments(state):
        named.setdefault((segment.scope, segment.stream), set()).add(segment.segment_id)
    return {
        StreamSegmentName(*stream, identifier): end
        for stream, identifiers in named.items()
        for identifier, end in positions.ends_of(*stream, identifiers).items()
    }


def _segments(state: GroupState) -> Iterator[StreamSegmentName]:
    for positions in (state.positions, state.ends, state.last_read, *state.checkpoints.positions.values()):
        yield from positions
    yield from state.checkpoints.last or ()
    for cuts in (state.configuration.starts, state.configuration.ends):
        for scoped_name, offsets in cuts.items():
            scope, stream = scoped_name.split("/", 1)
            for identifier in offsets or ():
                yield StreamSegmentName(scope, stream, identifier)


def _state_of(data: bytes, segment: str) -> GroupState | None:
    """The state after all entries, as readers get it. Updates before the first state are skipped."""
    state: GroupState | None = None
    try:
        entries, end = split_events(data, 0)
        if end != len(data):
            raise CorruptError("it ends inside an entry")
        for entry in map(parse_entry, entries):
            if isinstance(entry, InitialEntry):
                state = parse_state(entry.state)
            elif state is not None:
                for update in map(parse_update, entry.updates):
                    state = update.applied_to(state)
    except (CorruptError, IllegalStateError) as error:
        raise CorruptError(f"{segment}: {error.message}") from error
    return state

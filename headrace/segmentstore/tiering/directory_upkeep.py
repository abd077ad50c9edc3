"""Applies the merges, removals and truncations of a container to the chunk directory.

Each piece of work is bounded and may be repeated: it finds in the directory what an earlier attempt has done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from headrace.codec.container_snapshots import ContainerSnapshot, MergedRange
from headrace.model.chunks import ChunkRun, RunLink
from headrace.model.errors import CorruptError
from headrace.model.names import is_transaction_segment_name, is_transient_segment_name
from headrace.ports.metadata_store import ItemRefusedError
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.metadata import is_name_for_tier_2
from headrace.segmentstore.containers.operation_log import resolve
from headrace.segmentstore.containers.pending_merges import DueMove, PendingMerge, due_move
from headrace.segmentstore.containers.quarantine import quarantine
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tiering import chunk_directory
from headrace.segmentstore.tiering.chunk_directory import RUNS_PER_WRITE_MAX, ChunkDirectory, changed
from headrace.segmentstore.tiering.compactor import SmallRuns

# Makes the runs that came by one merge those of their new segment in the chunk directory: all of them, or none.
#
# Runs that fit into one transaction are moved in it. More of them become the target's by one record, a link to the
# segment that has them, and then follow it batch by batch; readers of the directory follow the link. A step that was
# done unheard is found, so that an attempt after a crash, by the same owner or the next one, goes on where it stopped.


async def move_merged(directory: ChunkDirectory, target: str, merged: MergedRange) -> list[ChunkRun] | None:
    """Have the bytes of a merge under the target's name; its last runs then.

    None if the directory does not have these bytes, neither there nor where they came from.

    Raises:
        CorruptError: runs that a link speaks of are missing.
        FencedError: the container has another owner.
        ThrottledError, UnavailableError: the metadata store does not answer, or something changed; look again.
    """
    name, position = merged.place
    end = position + merged.length
    moves_max = chunk_directory.MOVES_PER_WRITE_MAX
    page = await directory.page(name, first=position, limit=moves_max + 1)
    runs = [run for run in page if run.end <= end]
    if runs and runs[0].offset == position:
        if len(runs) > moves_max:
            link = RunLink(merged.offset, merged.length, name, position, merged.ordering)
            await directory.link(target, link, runs[0])
        elif runs[-1].end == end:
            moved = [run.moved(merged.offset - position, merged.ordering) for run in runs]
            if await directory.move(name, target, runs, moved):
                return moved
    # The link is there now, or an earlier attempt came further than its caller heard.
    entry = await directory.entry_before(target, merged.end)
    if isinstance(entry, RunLink):
        return await follow_link(directory, target, entry)
    return None if entry is None or entry.end < merged.end else [entry]


async def complete_link(directory: ChunkDirectory, name: str, last: RunLink) -> bool:
    """Follow the link `last` that ends a segment or, if it is forwarding, the one to the runs of this segment.

    Returns False if the directory does not have it any more. Raises as `move_merged`.
    """
    target, end = (last.segment, last.position + last.length) if last.is_forwarding else (name, last.end)
    async with directory.completing_links:  # it may be found by both names at a time
        link = await directory.entry_before(target, end)
        if not isinstance(link, RunLink):
            return False
        await follow_link(directory, target, link)
    return True


async def follow_link(directory: ChunkDirectory, target: str, link: RunLink) -> list[ChunkRun]:
    """Move the runs behind the link that ends the directory of `target`, until there is none; raises as `move_merged`.

    Returns the runs that it moved.
    """
    entered: list[ChunkRun] = []
    while True:
        limit = chunk_directory.LINKED_MOVES_PER_WRITE_MAX
        page = await directory.page(link.segment, first=link.position, limit=limit)
        runs = [run for run in page if run.end <= link.position + link.length]
        if not runs or runs[0].offset != link.position:
            if await directory.entry_before(target, link.end) != link:
                raise changed()  # an earlier attempt, which had no answer, has moved them since the link was read
            raise CorruptError(
                f"the chunk directory has lost runs of {link.segment} from {link.position} on, merged into {target}",
                details={"segment": target, "offset": link.offset},
            )
        moved = await directory.move_linked(target, link, runs)
        entered += moved
        end = moved[-1].end
        if end == link.end:
            return entered
        link = RunLink(end, link.end - end, link.segment, runs[-1].end, link.ordering)


_log = logging.getLogger(__name__)

REMOVALS_PER_PASS_MAX: Final = 64
TRIMMED_PER_PASS_MAX: Final = 64
TRIMMED_AT_ONCE_MAX: Final = 4
"""Each is a query in a thread that flushes use too. Most of them find nothing to do."""


class DirectoryUpkeep:
    """Updates the chunk directory of one container, in the passes of its storage writer. It owns their tiered state.

    `on_stored` is called when tier 2 has received more bytes of the container. `covered`: tier 2's snapshot has all
    that the container is now.
    """

    def __init__(
        self,
        container: SegmentContainer,
        directory: ChunkDirectory,
        small_runs: SmallRuns,
        object_bytes_max: int,
        on_stored: Callable[[], None],
        *,
        covered: bool,
    ) -> None:
        self._container = container
        self._directory = directory
        self._small_runs = small_runs
        self._object_bytes_max = object_bytes_max
        self._on_stored = on_stored
        self._looked_at = -1  # number of the segment that was trimmed last in this pass
        self._used_names: dict[str, int] = {}
        """Names, with numbers, of removed segments that tier 2's snapshot may have: those that this owner removed."""
        self._knows_used_names = covered
        self._empty_sources = _empty_transactions(container.metadata.stored_snapshot()) if covered else {}
        """Names, with the first number, of transactions' segments without a byte in tier 2's snapshot or the next one.
        """

    def take_as_stored(self, place: Segment, run: ChunkRun) -> None:
        """Note that the directory has this run of `place`, a segment of the container or a source of a pending merge.

        Raises:
            CorruptError: the run contradicts the log.
        """
        if run.logged is not None and not self._container.log.ledger.knows(*run.logged):
            where = f"entry {run.logged.entry} of epoch {run.logged.epoch}"
            raise self._contradiction(place, run, f"up to {run.end} from {where}, which this log has lost")
        home, shift = place.home
        end = shift + run.end
        # A merge that is not durable yet shows no byte of its source in the target. The source had them all before it.
        known_end = home.durable.length if place is home else max(home.durable.length, shift + place.accepted.length)
        if end > known_end:
            what = f"up to {run.end}, the log only up to {known_end - shift}: acknowledged bytes are missing"
            raise self._contradiction(place, run, f"{what} in it")
        if home.index.entry_start(end) != end:
            raise self._contradiction(place, run, f"in a run that ends at {run.end}, inside an append: it is not ours")
        first = min(run.offset, place.tiered.length)  # runs before this one may have come unheard, by an earlier move
        if run.end > place.tiered.length:
            place.advance_tiered(run.end)
            self._small_runs.note(place.name, run.length)
        if shift + first < home.accepted.start_offset:
            home.tiered.trimmed_offset = 0  # truncated before it was flushed: trim again

    def note_stored(self, segments: Iterable[Segment]) -> None:
        """Log how much of the segments tier 2 has now."""
        self._container.note_stored([(segment.number, segment.tiered.length) for segment in segments])
        self._on_stored()

    def note_taken(self, snapshot: ContainerSnapshot) -> None:
        """Note that tier 2 may get this snapshot at any time."""
        self._empty_sources = _empty_transactions(snapshot) | self._empty_sources

    def note_snapshot(self, snapshot: ContainerSnapshot) -> None:
        """Note that tier 2 has this snapshot, with the segments and start offsets in it."""
        self._empty_sources = _empty_transactions(snapshot)
        former = self._used_names
        removed = snapshot.deletions
        self._used_names = {name: last for name, last in former.items() if removed.get(name, last + 1) <= last}
        self._knows_used_names = True
        for told in snapshot.segments:
            if told.number <= former.get(told.name, -1):
                self._used_names[told.name] = former[told.name]
            segment = self._container.metadata.segments.get(told.name)
            if segment is not None and segment.number == told.number:
                segment.tiered.told_start = told.start_offset

    def must_wait(self, segment: Segment) -> bool:
        """Whether tier 2 must have a newer snapshot before it gets the first bytes of a segment, or its record.

        The same is true of the first bytes of its merges.

        The present snapshot may have a removed segment of the same name. A store without this log would take the new
        runs for those of the removed one: it would delete them, give them its seal and the numbers of its writers, or
        refuse the container.
        """
        if self._knows_used_names and not self._used_names:
            return False  # nearly always: there may be thousands of merges to look at
        sources = (source for merge in segment.merges for source in merge.sources())
        return self._may_be_mistaken(segment) or any(map(self._may_be_mistaken, sources))

    def merge_must_wait(self, merge: PendingMerge) -> bool:
        """Whether tier 2 must have a newer snapshot before it gets the bytes of a merge under the target's name.

        The present snapshot may have the source as a segment without a byte. A store without this log would take it for
        an open transaction that has lost its bytes, and refuse to merge it again: the controller would abort what is in
        the stream already. Without the source in the snapshot it counts as merged. The record of a source that was
        evicted before it got a byte is removed first, too.
        """
        return self._is_told_open(merge) or any(map(_has_record, merge.sources()))

    def _is_told_open(self, merge: PendingMerge) -> bool:
        if self._knows_used_names and not self._empty_sources:
            return False
        return any(map(self._may_seem_open, merge.sources()))

    def _may_seem_open(self, source: Segment) -> bool:
        if self._knows_used_names:  # a later segment of the name, which a late request created, is not the source
            return self._empty_sources.get(source.name, source.number + 1) <= source.number
        return is_transaction_segment_name(source.name)

    def wants_snapshot(self, segment: Segment) -> bool:
        """Whether bytes of a segment wait for a newer snapshot."""
        return self.must_wait(segment) or any(map(self._is_told_open, segment.merges))

    def _may_be_mistaken(self, segment: Segment) -> bool:
        if segment.tiered.length or not _may_be_used_again(segment.name):
            return False
        return not self._knows_used_names or segment.name in self._used_names

    def _contradiction(self, segment: Segment, run: ChunkRun, what: str) -> CorruptError:
        message = f"the chunk directory has {segment.name} {what}"
        _log.critical(
            "event=foreign_change container=%d object=%s error=%r", self._container.container, run.object_name, message
        )
        return CorruptError(message, details={"segment": segment.name, "offset": run.offset})

    async def move_merged(self) -> bool:
        """Move the runs of merged segments to their targets in the directory. Returns whether there were any."""
        more = False
        for segment in list(self._container.dirty.values()):
            if segment.merges and self.must_wait(segment):
                continue
            while self._may_move(segment) and (due := due_move(segment, self._object_bytes_max)) is not None:
                if self.merge_must_wait(due.merge):
                    break
                more = True
                done = FlushMark([segment])
                try:
                    await self._move(due)
                except ItemRefusedError as error:
                    quarantine(self._container, segment, error)
                finally:
                    done()
        return more

    @staticmethod
    def _may_move(segment: Segment) -> bool:
        return not (segment.accepted.removed or segment.quarantined)

    async def _move(self, due: DueMove) -> None:
        target, merge = due
        with self._container.unanswered.noted(target.name, merge.source.name):
            runs = await move_merged(self._directory, target.name, merge.merged_range())
        if runs is not None:
            for run in runs:
                self.take_as_stored(target, run)
        elif await self._has_moved_on(target, merge.end):
            target.advance_tiered(target.accepted.length)
        else:
            raise CorruptError(f"the chunk directory has lost runs of {merge.source.name}, merged into {target.name}")
        self.note_stored([target])

    async def _has_moved_on(self, source: Segment, end: int) -> bool:
        """Whether the bytes of a merged segment up to `end` have reached a segment that it was merged into.

        Several moves may be done before the log knows of the first one, and a crash undoes what it does not know. A
        segment is moved on only as a whole.
        """
        while source.merged_into is not None:
            target, offset = source.merged_into
            end += offset
            entry = await self._directory.entry_before(target.name, end)
            if entry is not None and entry.end >= end:
                return True
            source = target
        return False

    async def forget_removed(self, under_way: Collection[str]) -> bool:
        """Remove runs of removed segments, a bounded number. Returns whether there may be more.

        Those that bytes `under_way` may still enter are left: otherwise these runs would stay, and a new segment of the
        name would take them for its own. So are those under whose names unanswered writes may still take effect.
        """
        await self._remove_records_of_sources()
        container = self._container
        metadata, durable = container.metadata, container.log.durable_entry
        dirty = container.dirty.values()
        needed = {
            source.name
            for segment in dirty
            for merge in segment.merges
            if not merge.enters_directly(self._object_bytes_max)
            for source in merge.sources()
        }
        needed.update(under_way, container.unanswered.names(), container.removals.refused)
        ready = [name for name, entry in metadata.deletions.items() if entry <= durable and name not in needed]
        for name in ready[:REMOVALS_PER_PASS_MAX]:
            try:
                is_removed = await self._remove_removed(name)
            except ItemRefusedError as error:
                # Former releases accepted longer names for transient segments. Tier 2 refused them, and has nothing.
                is_removed = not is_name_for_tier_2(name)
                if not is_removed:
                    self._leave_removal(name, error)
            if not is_removed:
                continue
            if _may_be_used_again(name):
                self._used_names[name] = metadata.deleted_numbers[name]
            container.note_deletion_stored(name)
        return bool(ready)

    async def _remove_records_of_sources(self) -> None:
        """Remove the records of transactions' segments that are merged, while tier 2 has no byte of the merges."""
        durable = self._container.log.durable_entry
        merges = [each for segment in self._container.dirty.values() for each in segment.merges]
        for merge in merges:
            for source in filter(_has_record, merge.sources()):
                if merge.ledger_entry > durable:
                    continue  # a crash would bring the source back
                with self._container.unanswered.noted(source.name), suppress(ItemRefusedError):
                    await self._directory.remove_record(source.name)
                source.recorded = None

    def _leave_removal(self, name: str, error: ItemRefusedError) -> None:
        container = self._container
        container.removals.refuse(name)
        what = (container.container, name, error.message)
        _log.critical("event=removal_quarantined container=%d segment=%r error=%r", *what)

    async def _remove_removed(self, name: str) -> bool:
        """Remove what tier 2 has of a removed segment, a bounded part of it. Returns whether nothing is left."""
        if not await self._remove_runs(name):
            return False
        if self._container.metadata.has_records and not is_transient_segment_name(name):
            with self._container.unanswered.noted(name):  # else a late removal would meet the next one of this name
                await self._directory.remove_record(name)  # last: runs without it would belong to no segment
        return True

    async def _remove_runs(self, name: str) -> bool:
        """Remove runs of a removed segment, as many as fit into a transaction. Returns whether none is left.

        Linked runs are moved first. Without them a store that has lost the log, and to which tier 2 does not tell of
        the removal, would find a link to nothing; without the link they would belong to no segment.
        """
        directory, unanswered = self._directory, self._container.unanswered
        runs, links = await directory.all_entries(name, RUNS_PER_WRITE_MAX)
        is_page = len(runs) + len(links) == RUNS_PER_WRITE_MAX
        last = links[-1] if links else await directory.last_entry(name) if is_page else None
        if isinstance(last, RunLink):
            with unanswered.noted(name, last.segment), suppress(CorruptError):  # lost runs of it harm no other segment
                if await complete_link(directory, name, last):
                    return False
        with unanswered.noted(name):
            return await directory.remove(name, runs, links) == len(runs) and not is_page

    async def trim_truncated(self) -> bool:
        """Remove runs before the start of their segment, a bounded number. Returns whether there may be more.

        After a start all segments that were ever truncated are checked, a bounded number in each pass. Those with
        unanswered writes wait: these may enter runs once more.
        """
        dirty, late = self._container.dirty.values(), self._container.unanswered.names()
        due = [
            each for each in dirty if each.tiered.trimmed_offset < each.durable.start_offset and not each.quarantined
        ]
        due = [each for each in due if each.number > self._looked_at and each.name not in late]
        due.sort(key=lambda each: each.number)
        looked_at = due[:TRIMMED_PER_PASS_MAX]
        removed = 0
        for first in range(0, len(looked_at), TRIMMED_AT_ONCE_MAX):
            batch = looked_at[first : first + TRIMMED_AT_ONCE_MAX]
            outcomes = await asyncio.gather(*map(self._trim, batch), return_exceptions=True)
            for segment, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, ItemRefusedError):
                    quarantine(self._container, segment, outcome)
                elif isinstance(outcome, BaseException):
                    raise outcome
                else:
                    removed += outcome
        more = len(due) > len(looked_at)
        self._looked_at = looked_at[-1].number if more else -1
        return more or removed > 0

    async def _trim(self, segment: Segment) -> int:
        """Remove runs before the start of a segment. Returns their number."""
        start = segment.durable.start_offset  # a truncation that a crash undoes must not cost its bytes
        # A run that a merge moved here stays until the log knows of the move: else its place would be unknown.
        moved_end = segment.tiered.length
        runs = await self._directory.page(segment.name, limit=RUNS_PER_WRITE_MAX)
        old = [run for run in runs if run.end <= min(start, moved_end)]
        # The last run stays until tier 2's snapshot has this start: else a store without this log would find
        # nothing of the segment, and take it for a deleted one.
        keeps_last = len(old) == len(runs) > 0 and segment.tiered.told_start < start
        gone = old[:-1] if keeps_last else old
        if gone and not self._container.stored_is_durable:
            return 0
        removed = await self._directory.remove(segment.name, gone)
        if removed == len(old) < RUNS_PER_WRITE_MAX:
            segment.tiered.trimmed_offset = start
        return removed

    def rest_segments(self) -> None:
        """Remove segments from the dirty ones if nothing is left to do for them."""
        resting = [
            number
            for number, segment in self._container.dirty.items()
            if self._is_gone(segment)
            or (
                segment.tiered.length >= segment.accepted.length
                and not segment.merges
                and not segment.quarantined
                and segment.tiered.trimmed_offset >= segment.accepted.start_offset
            )
        ]
        for number in resting:
            rested = self._container.dirty.pop(number)
            rested.untiered_since_s, rested.is_urgent = None, False

    def _is_gone(self, segment: Segment) -> bool:
        """Whether the segment was removed and no crash brings it back; until then it keeps what it was merged from."""
        container = self._container
        removal = container.metadata.deletions.get(segment.name, -1)
        return segment.accepted.removed and removal <= container.log.durable_entry


def _may_be_used_again(name: str) -> bool:
    """Whether another segment may get this name. Those of transactions and large events have a new UUID each."""
    return not (is_transaction_segment_name(name) or is_transient_segment_name(name))


def _has_record(source: Segment) -> bool:
    """Whether this owner has activated the segment of a transaction: its record is of before."""
    return source.recorded is not None and is_transaction_segment_name(source.name)


def _empty_transactions(snapshot: ContainerSnapshot) -> dict[str, int]:
    """The segments of transactions of which a snapshot tells no byte, with their numbers."""
    segments = (told for told in snapshot.segments if not told.length)
    return {told.name: told.number for told in segments if is_transaction_segment_name(told.name)}


class FlushMark:
    """Makes removals of segments wait while their directory is written."""

    __slots__ = ("_future", "_segments")

    def __init__(self, segments: list[Segment]) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._segments = segments
        for segment in segments:
            segment.flushing = self._future

    def __call__(self) -> None:
        for segment in self._segments:
            segment.flushing = None
        resolve(self._future)

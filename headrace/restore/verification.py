"""Verifies a restored deployment: that its records agree, and that the bucket has what they name.

It reads the table and the bucket, and changes nothing. Streams may not be written meanwhile: what a store has, and the
bucket does not have yet, would be taken for lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from headrace.adapters.dynamodb.table_items import Item, TableItems, key_of, record_of
from headrace.adapters.s3.object_versions import BucketVersions
from headrace.doctor.findings import Finding, Verdict
from headrace.metadata.cluster_records import read_snapshot_pointer
from headrace.metadata.reader_group import read_reader_group
from headrace.metadata.restored_positions import RETENTION_CUTS_FIRST, STREAMS_FIRST, RestoredPositions
from headrace.metadata.retention_records import read_retention_cut
from headrace.metadata.segment_ends import SegmentEnds, has_entry_at, segments_from_head
from headrace.metadata.stream import CURRENT_SORT
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.subscriber import SubscriberRecords
from headrace.metadata.transaction import transaction_left_open
from headrace.metadata.truncation import read_truncation, truncation_key
from headrace.model.chunks import ChunkRun, is_link, run_link
from headrace.model.containers import CLUSTER_PARTITION
from headrace.model.errors import CorruptError, InvalidRequestError, NotFoundError
from headrace.model.reader_groups import ReaderGroup
from headrace.model.restore_plan import NeededObject, ObjectState, judged
from headrace.model.segments import covers_key_space_once
from headrace.model.stream_cuts import CutOrder, PlacedCut, compare_cuts
from headrace.model.streams import Stream
from headrace.model.truncation import Truncation
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Key, MetadataStore, Record
from headrace.restore.applying import container_layout, is_under_way
from headrace.restore.groups import GroupStates
from headrace.restore.planning import index_objects, is_in_directory, run_in
from headrace.restore.segments import TRANSACTIONS_FIRST

QUESTIONS: Final = {
    "finished": "Has the last restore finished?",
    "snapshots": "Has the bucket the snapshot of each container?",
    "directory": "Can each run of the chunk directory be read, and are runs of a segment contiguous?",
    "tables": "Has the bucket each object of a table's index?",
    "epochs": "Do the epochs of each stream follow each other, and cover the key space once?",
    "lengths": "Has the bucket each sealed segment to its end?",
    "cuts": "Are heads, subscribers and retention cuts of each stream inside of it?",
    "groups": "Can the state of each reader group be read, has it no reader, and is it inside its streams?",
    "transactions": "Does each open transaction belong to its stream?",
}
"""The checks, in their order."""

READS_AT_ONCE: Final = 32
EXAMPLES_MAX: Final = 5


@dataclass(slots=True)
class Verified:
    """What the checks have seen: how many things each has examined, and the first of those that are wrong."""

    examined: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, check: str, problem: str | None) -> None:
        """Count one thing that a check has examined, and its problem if it has one."""
        self.examined[check] += 1
        if problem is not None:
            self.wrong[check] += 1
            examples = self.examples.setdefault(check, [])
            if len(examples) < EXAMPLES_MAX:
                examples.append(problem)

    def findings(self) -> list[Finding]:
        """A finding for each check."""
        return [self._finding(check) for check in QUESTIONS]

    def _finding(self, check: str) -> Finding:
        if not self.wrong[check]:
            return Finding(check, Verdict.WELL, f"{self.examined[check]} examined")
        more = f"; and {self.wrong[check] - EXAMPLES_MAX} more" if self.wrong[check] > EXAMPLES_MAX else ""
        return Finding(check, Verdict.FAILURE, "; ".join(self.examples[check]) + more)


def verify(
    items: TableItems, store: MetadataStore, bucket: BucketVersions, chunks: ChunkStorage, clock: Clock
) -> list[Finding]:
    """What all checks find, in the order of QUESTIONS.

    Raises:
        IllegalStateError: code "release_too_old": the deployment is finalized for a later release.
        ThrottledError, UnavailableError: DynamoDB or S3 does not answer.
    """
    verified = Verified()
    verified.note("finished", "repeat headrace restore apply" if is_under_way(store) else None)
    streams = _StreamChecks(store, verified)
    groups = _GroupChecks(GroupStates(store, chunks, clock, container_layout(store)), store, verified)
    before: tuple[str, int] | None = None
    for page in items.pages():
        runs: list[tuple[Key, ChunkRun]] = []
        for item in page:
            _check_objects(item, bucket, verified)
            streams.check(item)
            groups.check(record_of(item))
            run = _run_in(item, verified)
            if run is None:
                _check_link(item, before, store, verified)
                continue
            key = key_of(item)
            if before is not None and before[0] == key.partition and before[1] != run.offset:
                verified.note("directory", f"{key.partition} has nothing from {before[1]} to {run.offset}")
            before = key.partition, run.end
            runs.append((key, run))
        asyncio.run(_read_runs(runs, chunks, verified))
    return verified.findings()


async def _read_runs(runs: list[tuple[Key, ChunkRun]], chunks: ChunkStorage, verified: Verified) -> None:
    for first in range(0, len(runs), READS_AT_ONCE):
        batch = runs[first : first + READS_AT_ONCE]
        problems = await asyncio.gather(*(_run_problem(key, run, chunks) for key, run in batch))
        for problem in problems:
            verified.note("directory", problem)


async def _run_problem(key: Key, run: ChunkRun, chunks: ChunkStorage) -> str | None:
    """Reads the first and the last byte of a run."""
    for position in sorted({run.position, run.position + run.length - 1}):
        try:
            await chunks.read(run.object_name, position, 1)
        except NotFoundError:
            return f"{key.partition}/{key.sort}: {run.object_name} has no byte {position}"
    return None


def _run_in(item: Item, verified: Verified) -> ChunkRun | None:
    try:
        return run_in(item)
    except CorruptError as error:
        verified.note("directory", f"{key_of(item)}: {error.message}")
        return None


def _check_link(item: Item, before: tuple[str, int] | None, store: MetadataStore, verified: Verified) -> None:
    """A link continues the runs before it, and leads to a run or another link. Other items are not looked at."""
    key = key_of(item)
    if not is_in_directory(key):
        return
    try:
        record = record_of(item)
        if not is_link(record.body):
            return
        link = run_link(key.sort, record.body)
    except CorruptError as error:
        verified.note("directory", f"{key}: {error.message}")
        return
    if link.is_forwarding:
        return
    problem = None
    if before is not None and before[0] == key.partition and before[1] != link.offset:
        problem = f"{key.partition} has nothing from {before[1]} to {link.offset}"
    elif not has_entry_at(store, link.segment, link.position):
        problem = f"the link {key.partition}/{key.sort} leads to nothing"
    verified.note("directory", problem)


def _check_objects(item: Item, bucket: BucketVersions, verified: Verified) -> None:
    key = key_of(item)
    needed: list[tuple[str, NeededObject]] = []
    try:
        needed += [("tables", each) for each in index_objects(item)]
        if key.partition == CLUSTER_PARTITION and key.sort.startswith("snapshot/"):
            pointer = read_snapshot_pointer(record_of(item))
            needed.append(("snapshots", NeededObject(pointer.object_name, pointer.length)))
    except CorruptError as error:
        verified.note("snapshots", f"{key}: {error.message}")
    for check, each in needed:
        state = judged(each, bucket.of(each.name)).state
        verified.note(check, None if state is ObjectState.PRESENT else f"{each.name} is {state}")


class _StreamChecks:
    """The checks of streams and their transactions, each when the scan meets its record."""

    def __init__(self, store: MetadataStore, verified: Verified) -> None:
        self._store = store
        self._records = StreamRecords(store)
        self._subscribers = SubscriberRecords(store)
        self._ends = SegmentEnds(store)
        self._verified = verified

    def check(self, item: Item) -> None:
        key = key_of(item)
        try:
            if key.partition.startswith(STREAMS_FIRST):
                self._check_stream(key, item)
            elif key.partition.startswith(TRANSACTIONS_FIRST):
                self._check_transaction(key, item)
        except (CorruptError, NotFoundError, InvalidRequestError) as error:
            self._verified.note("epochs", f"{key.partition}/{key.sort}: {error.message}")

    def _check_stream(self, key: Key, item: Item) -> None:
        if key.sort == CURRENT_SORT:
            stored = self._records.stored(record_of(item))
            if stored is not None and not stored.stream.is_deleting:
                self._check_current(stored.stream)
        elif key.sort.startswith(RETENTION_CUTS_FIRST):
            cut = read_retention_cut(record_of(item)).head
            self._check_cut(f"a retention cut of {key.partition}", cut, self._head(cut.cut.scope, cut.cut.stream))

    def _check_current(self, stream: Stream) -> None:
        note, name = self._verified.note, stream.scoped_name
        head = self._head(stream.scope, stream.name)
        note("epochs", self._epochs_problem(stream, 0 if head is None else head.first_epoch))
        if head is not None:
            self._check_cut(f"the head of {name}", head.head, None)
        for subscriber in self._subscribers.all(stream):
            self._check_cut(f"subscriber {subscriber.name} of {name}", subscriber.position, head)
        segments = list(segments_from_head(stream, head, self._records.history))
        ends = self._ends.of_segments(stream.scope, stream.name, segments, head)
        sealed = self._records.history.sealed_segments(stream, list(ends))
        for identifier, segment in sealed.items():
            missing = segment.length - ends[identifier]
            note("lengths", f"segment {identifier} of {name} lacks {missing} bytes at its end" if missing > 0 else None)

    def _epochs_problem(self, stream: Stream, first_epoch: int) -> str | None:
        number = first_epoch
        for epoch in self._records.history.epochs(stream, range(first_epoch, stream.epoch.number + 1)):
            if epoch.number != number:
                return f"{stream.scoped_name} has epoch {epoch.number} in the place of {number}"
            if not covers_key_space_once([segment.key_range for segment in epoch.segments]):
                return f"epoch {number} of {stream.scoped_name} does not cover the key space once"
            number += 1
        return None

    def _check_cut(self, what: str, cut: PlacedCut, head: Truncation | None) -> None:
        self._verified.note("cuts", self._cut_problem(what, cut, head))

    def _cut_problem(self, what: str, cut: PlacedCut, head: Truncation | None) -> str | None:
        if head is not None and compare_cuts(cut, head.head) is CutOrder.BEFORE:
            return None  # readers begin at the head
        own_head = head if head is not None else self._head(cut.cut.scope, cut.cut.stream)
        if cut.within(self._ends.of(cut, own_head)) != cut:
            return f"{what} is behind the end of a segment"
        return None

    def _check_transaction(self, key: Key, item: Item) -> None:
        transaction = transaction_left_open(record_of(item))
        if transaction is None:
            return
        _, scope, name = key.partition.split("/")
        stored = self._records.find(scope, name)
        problem = None
        if stored is None or stored.stream.first_segment_number != transaction.first_segment_number:
            problem = f"{key.sort} of {scope}/{name} is of a stream that does not exist"
        elif transaction.reference_epoch > stored.stream.recorded_epoch:
            problem = f"{key.sort} of {scope}/{name} is of epoch {transaction.reference_epoch}, which does not exist"
        self._verified.note("transactions", problem)

    def _head(self, scope: str, stream: str) -> Truncation | None:
        return read_truncation(self._store.get(truncation_key(scope, stream)))


class _GroupChecks:
    """The checks of reader groups, each when the scan meets its record."""

    def __init__(self, states: GroupStates, store: MetadataStore, verified: Verified) -> None:
        self._states = states
        self._positions = RestoredPositions(store)
        self._verified = verified

    def check(self, record: Record) -> None:
        try:
            group = read_reader_group(record)
            if group is not None:
                self._verified.note("groups", self._problem(group))
        except (CorruptError, NotFoundError, InvalidRequestError) as error:
            self._verified.note("groups", f"{record.key.partition}: {error.message}")

    def _problem(self, group: ReaderGroup) -> str | None:
        tiered = self._states.load(group)
        if tiered is None:
            return None  # its first reader begins as the group is configured
        if tiered.state.readers:
            return f"{group.scoped_name} has the readers {', '.join(tiered.state.readers[:EXAMPLES_MAX])}"
        if tiered.restored(self._positions) != tiered.state:
            return f"{group.scoped_name} has positions behind the ends of their segments"
        return None

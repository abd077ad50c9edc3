"""Holds a store after a crash against the history of what it was asked and what it answered.

Every acknowledged request's effect is there exactly once; a request with an unknown outcome is there wholly or not at
all, in its writer's order; nothing else is there; and what a writer is told when it comes back agrees with the data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fuzz.connections import Connection
from fuzz.histories import (
    NOW,
    Append,
    History,
    Merge,
    Outcome,
    Request,
    SegmentHistory,
    TableHistory,
    WriterHistory,
    parse_blocks,
)
from headrace import wire
from headrace.model.segment_attributes import EVENT_COUNT

CHANGES_KEY: Final = 0x1001
MERGES_KEY: Final = 0x1002
_WRITER_IDS: Final = 1 << 80
_READ_BYTES: Final = 1 << 20
_TABLE_PAGE_ENTRIES: Final = 5
_REMOVAL_TURNS_MAX: Final = 1000
"""How often a segment that must be removed in the background is looked for before it counts as left over."""


class WrongStateError(AssertionError):
    """The store is not as it should be."""


@dataclass(slots=True)
class Found:
    """A segment as the store shows it. `numbers`: what each writer is told by AppendSetup."""

    length: int
    start: int
    sealed: bool
    data: bytes
    changes: int
    merges: int
    event_count: int
    numbers: dict[int, int]


@dataclass(slots=True)
class Verdict:
    """What became of the requests whose outcome was unknown."""

    decided: list[tuple[Request, bool]] = field(default_factory=list)

    def settle(self, position: int) -> None:
        """From this position of the clock on they have an outcome."""
        for request, done in self.decided:
            request.answer(position, done=done)

    def decide(self, request: Request | None, moment: int, done: bool, what: str) -> None:
        """Note whether a request happened; complain if that cannot be."""
        outcome = request.outcome(moment) if request is not None else Outcome.NOT_ASKED
        if outcome is Outcome.UNKNOWN and request is not None:
            self.decided.append((request, done))
        elif done != (outcome is Outcome.DONE):
            raise WrongStateError(f"{what} {'happened' if done else 'did not happen'}, it was {outcome.value}")


def writer_id(tag: int) -> int:
    return _WRITER_IDS | tag


async def check(connection: Connection, history: History, moment: int = NOW) -> Verdict:
    """Look at every segment of the history as it was at `moment` of its clock.

    Raises:
        WrongStateError, ContentError: the store contradicts its history.
    """
    lives = {
        segment.name: segment for segment in history.segments if segment.create.outcome(moment) != Outcome.NOT_ASKED
    }
    found: dict[str, Found | None] = {}
    for name, segment in lives.items():
        found[name] = await observe(connection, segment)
    verdict = Verdict()
    for segment in lives.values():
        _check_segment(segment, found, verdict, moment)
    asked_tables = [each for each in history.tables if each.create.outcome(moment) is not Outcome.NOT_ASKED]
    for table in {table.name: table for table in asked_tables}.values():
        _check_table(table, await entries_of(connection, table.name), verdict, moment)
    return verdict


async def entries_of(connection: Connection, name: str) -> dict[bytes, wire.TableEntry] | None:
    """All entries of a table, page by page; None if there is none."""
    entries: dict[bytes, wire.TableEntry] = {}
    token: wire.Buffer = b""
    while True:
        page = await connection.call(wire.ReadTableEntries(5, name, "", _TABLE_PAGE_ENTRIES, token))
        if isinstance(page, wire.NoSuchSegment):
            return None
        if not isinstance(page, wire.TableEntriesRead):
            raise WrongStateError(f"table {name}: {page}")
        if not page.entries:
            return entries
        for entry in page.entries:
            if entry.key in entries:
                raise WrongStateError(f"table {name} gives {entry.key!r} twice")
            entries[entry.key] = entry
        token = page.continuation_token


async def observe(connection: Connection, segment: SegmentHistory) -> Found | None:
    """Everything that a client can learn of a segment; None if there is none."""
    info = await connection.call(wire.GetStreamSegmentInfo(1, segment.name))
    if segment.transient:
        for _ in range(_REMOVAL_TURNS_MAX):
            if isinstance(info, wire.NoSuchSegment):
                break
            await asyncio.sleep(0.001)
            info = await connection.call(wire.GetStreamSegmentInfo(1, segment.name))
    if isinstance(info, wire.NoSuchSegment):
        return None
    if not isinstance(info, wire.StreamSegmentInfo):
        raise WrongStateError(f"{segment.name}: {info}")
    data = bytearray()
    while info.start_offset + len(data) < info.write_offset:
        offset = info.start_offset + len(data)
        reply = await connection.call(wire.ReadSegment(segment.name, offset, _READ_BYTES, "", 2))
        if not isinstance(reply, wire.SegmentRead) or not len(reply.data) or reply.offset != offset:
            raise WrongStateError(f"{segment.name} at {offset} of {info.write_offset}: {str(reply)[:300]}")
        data += reply.data
    if info.start_offset + len(data) != info.write_offset:
        raise WrongStateError(f"{segment.name} gave {len(data)} bytes from {info.start_offset}: {info}")
    numbers = {}
    for writer in segment.writers:
        reply = await connection.call(wire.SetupAppend(3, writer_id(writer.tag), segment.name))
        if not isinstance(reply, wire.AppendSetup):
            raise WrongStateError(f"{segment.name}: {reply}")
        numbers[writer.tag] = reply.last_event_number
    changes, merges, events = [
        await _attribute(connection, segment, key) for key in (CHANGES_KEY, MERGES_KEY, EVENT_COUNT)
    ]
    return Found(info.write_offset, info.start_offset, info.is_sealed, bytes(data), changes, merges, events, numbers)


async def _attribute(connection: Connection, segment: SegmentHistory, key: int) -> int:
    reply = await connection.call(wire.GetSegmentAttribute(4, segment.name, key))
    if not isinstance(reply, wire.SegmentAttribute):
        raise WrongStateError(f"{segment.name}: {reply}")
    return 0 if reply.value == wire.NO_ATTRIBUTE_VALUE else reply.value


def _check_segment(segment: SegmentHistory, found: Mapping[str, Found | None], verdict: Verdict, moment: int) -> None:
    here = found[segment.name]
    name = f"segment {segment.name}"
    leaves = [each for each in (segment.delete, segment.merged) if each is not None]
    if here is None:
        gone = [each for each in leaves if each.outcome(moment) in (Outcome.UNKNOWN, Outcome.DONE)]
        if gone:
            verdict.decide(segment.create, moment, True, f"the creation of {name}")
            if segment.delete in gone:
                verdict.decide(segment.delete, moment, True, f"the removal of {name}")
        elif not segment.transient:  # that one ends with its connection
            verdict.decide(segment.create, moment, False, f"the creation of {name}")
        return
    if segment.transient:
        raise WrongStateError(f"{name} outlives its connection")
    verdict.decide(segment.create, moment, True, f"the creation of {name}")
    verdict.decide(segment.delete, moment, False, f"the removal of {name}")
    verdict.decide(segment.seal, moment, here.sealed, f"the seal of {name}")
    _check_start(segment, here, verdict, moment)
    last = max([0, *(each.value for each in segment.changes if each.outcome(moment) is Outcome.DONE)])
    for change in segment.changes:
        if change.outcome(moment) is Outcome.UNKNOWN:
            verdict.decide(change, moment, here.changes == change.value, f"a change of an attribute of {name}")
            last = here.changes if here.changes == change.value else last
    if here.changes != last:
        raise WrongStateError(f"{name} has the value {here.changes}, {last} was set last")
    _check_content(segment, here, found, verdict, moment)


def _check_start(segment: SegmentHistory, here: Found, verdict: Verdict, moment: int) -> None:
    known = [0, *(each.offset for each in segment.truncations if each.outcome(moment) is Outcome.DONE)]
    unknown = [each for each in segment.truncations if each.outcome(moment) is Outcome.UNKNOWN]
    if here.start != max(known) and here.start not in [each.offset for each in unknown]:
        raise WrongStateError(f"segment {segment.name} starts at {here.start}, it was truncated at {max(known)}")
    if here.start < max(known):
        raise WrongStateError(f"segment {segment.name} starts at {here.start} again, it was truncated at {max(known)}")
    for each in unknown:
        verdict.decide(each, moment, each.offset <= here.start, "a truncation")


def _check_content(
    segment: SegmentHistory, here: Found, found: Mapping[str, Found | None], verdict: Verdict, moment: int
) -> None:
    """Every block belongs to an append that happened, in order; those that are missing were truncated."""
    name = f"segment {segment.name}"
    blocks = list(_later_blocks(segment, here))
    tags = [tag for tag, _, _, _ in blocks]
    merges = [merge for merge in segment.merges if _merge_happened(segment, merge, tags, found, verdict, moment)]
    expected: dict[int, list[Append]] = {}
    for writer in segment.writers:
        expected[writer.tag] = _appends_that_happened(writer, here.numbers[writer.tag], verdict, moment)
    for merge in merges:
        for writer in _writers_of(merge):
            expected[writer.tag] = [each for each in writer.appends if each.outcome(moment) is Outcome.DONE]
    own = {writer.tag for writer in segment.writers}
    seen: dict[int, int] = {}
    for tag, number, offset, end in blocks:
        append = next((each for each in expected.get(tag, ()) if each.number == number), None)
        if append is None or append.stored_bytes != end - offset:
            raise WrongStateError(f"{name} has block {number} of writer {tag} at {offset}, which did not happen")
        if number <= seen.get(tag, -1):
            raise WrongStateError(f"{name} has block {number} of writer {tag} at {offset} behind {seen[tag]}")
        seen[tag] = number
        if tag in own and append.expected_offset not in (None, offset):
            raise WrongStateError(f"{name} has block {number} of writer {tag} at {offset}: {append}")
        if tag in own and append.outcome(moment) is Outcome.DONE and append.end not in (None, end):
            raise WrongStateError(f"{name} has block {number} of writer {tag} up to {end}: {append}")
    inherited = segment.inherited
    total = inherited.length + sum(each.stored_bytes for appends in expected.values() for each in appends)
    if total != here.length:
        present = {(tag, number) for tag, number, _, _ in blocks}
        wanted = [(tag, each.number) for tag, appends in expected.items() for each in appends]
        lost = [each for each in wanted if each not in present]
        raise WrongStateError(
            f"{name} has {here.length} bytes, expected {total}; not there, before {here.start}: {lost}"
        )
    for merge in merges:
        _check_contiguous(segment, merge, blocks)
    events = inherited.event_count + sum(each.event_count for appends in expected.values() for each in appends)
    counted = sum(merge.counted for merge in merges)
    if (events, counted) != (here.event_count, here.merges):
        raise WrongStateError(
            f"{name} counts {here.event_count} events and {here.merges} merges, expected {events} and {counted}"
        )


def _later_blocks(segment: SegmentHistory, here: Found) -> Iterable[tuple[int, int, int, int]]:
    """The blocks behind the inherited bytes, which must be there as they were, as far as they are not truncated."""
    before = segment.inherited
    kept = max(0, before.length - here.start)
    if here.data[:kept] != before.data[max(0, here.start - before.start) :]:
        raise WrongStateError(f"segment {segment.name} has other bytes before {before.length} than after its loss")
    return parse_blocks(here.data[kept:], here.start + kept)


def _check_table(table: TableHistory, here: dict[bytes, wire.TableEntry] | None, verdict: Verdict, moment: int) -> None:
    """The batches that happened, one after the other, and nothing else; the last one may be in doubt."""
    name = f"table {table.name}"
    if here is None:
        removed = table.delete is not None and table.delete.outcome(moment) in (Outcome.UNKNOWN, Outcome.DONE)
        verdict.decide(table.create, moment, removed, f"the creation of {name}")
        verdict.decide(table.delete, moment, removed, f"the removal of {name}")
        return
    verdict.decide(table.create, moment, True, f"the creation of {name}")
    verdict.decide(table.delete, moment, False, f"the removal of {name}")
    found = {key: bytes(entry.value) for key, entry in here.items()}
    expected: dict[bytes, bytes] = {}
    versions: dict[bytes, int] = {}
    for batch in table.batches:
        outcome = batch.outcome(moment)
        after = {**expected, **batch.changes}
        changed = {key: value for key, value in after.items() if value is not None}
        if outcome is Outcome.UNKNOWN:
            verdict.decide(batch, moment, found == changed, f"a batch on {name}")
        if outcome is Outcome.DONE or (outcome is Outcome.UNKNOWN and found == changed):
            expected = changed
            versions = {key: version for key, version in versions.items() if key not in batch.changes}
            versions |= batch.versions
    if found != expected:
        wrong = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
        raise WrongStateError(f"{name} has other values than it should for {sorted(wrong)}")
    others = [key for key, version in versions.items() if here[key].version != version]
    if others:
        raise WrongStateError(f"{name} has other versions than those that were told, for {sorted(others)}")


def _merge_happened(
    target: SegmentHistory,
    merge: Merge,
    tags: Iterable[int],
    found: Mapping[str, Found | None],
    verdict: Verdict,
    moment: int,
) -> bool:
    """Whether a merge happened; complains if it did so in part."""
    outcome = merge.outcome(moment)
    if outcome is Outcome.NOT_ASKED:
        return False
    what = f"the merge of {[source.name for source in merge.sources]} into {target.name}"
    gone = [found[source.name] is None for source in merge.sources if not source.transient]
    arrived = not {writer.tag for writer in _writers_of(merge)}.isdisjoint(tags)
    if outcome is Outcome.REFUSED:
        gone = []  # for another reason, if at all
    happened = arrived or any(gone)
    if outcome is Outcome.DONE and not gone:
        happened = True  # of a transient source nothing may be left to see, if the target was truncated
    if happened and not all(gone):
        raise WrongStateError(f"{what} happened in part: {gone}")
    verdict.decide(merge, moment, happened, what)
    return happened


def _writers_of(merge: Merge) -> list[WriterHistory]:
    """In the order of their blocks: what was merged into a source came behind its own."""
    writers: list[WriterHistory] = []
    for source in merge.sources:
        writers += source.writers
        for earlier in source.merges:
            if earlier.outcome() is Outcome.DONE:
                writers += _writers_of(earlier)
    return writers


def _appends_that_happened(writer: WriterHistory, last: int, verdict: Verdict, moment: int) -> list[Append]:
    """Those up to the number that the writer is told; the others must be unknown or refused."""
    happened = []
    for append in writer.appends:
        outcome = append.outcome(moment)
        if outcome in (Outcome.NOT_ASKED, Outcome.REFUSED):
            continue
        what = f"block {append.number} of writer {writer.tag} (told: {last})"
        verdict.decide(append, moment, append.number <= last, what)
        if append.number <= last:
            happened.append(append)
    known = happened[-1].number if happened else wire.NO_EVENT_NUMBER
    if known != last:
        raise WrongStateError(f"writer {writer.tag} is told {last}, its last block is {known}")
    return happened


def _check_contiguous(target: SegmentHistory, merge: Merge, blocks: list[tuple[int, int, int, int]]) -> None:
    """What came by a merge lies there in one piece, in the order of its sources, less what was truncated."""
    writers = {writer.tag for writer in _writers_of(merge)}
    wanted = [(w.tag, a.number) for w in _writers_of(merge) for a in w.appends if a.outcome() is Outcome.DONE]
    indexes = [index for index, block in enumerate(blocks) if block[0] in writers]
    if not indexes:
        return
    piece = [block[:2] for block in blocks[indexes[0] : indexes[-1] + 1]]
    if piece != wanted[len(wanted) - len(piece) :] or (len(piece) < len(wanted) and indexes[0] != 0):
        raise WrongStateError(f"a merge into {target.name} lies there as {piece}, expected {wanted}")

"""What must hold when nothing is left to do: outcomes of transactions, events, records and segments."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.controller_model import (
    KEYS,
    SCOPE,
    STREAMS,
    TRANSACTION,
    Decision,
    Event,
    ModelTransaction,
    SetCall,
    parse_events,
)
from fuzz.controller_run import ControllerRun
from headrace.metadata.commit_records import find_commit_writer
from headrace.metadata.orphan_segments import find_leftovers
from headrace.model.names import mark_segment_name, segment_name
from headrace.model.stream_state import StreamState
from headrace.model.transactions import TransactionState
from headrace.model.truncation import segments_left

_AT_REST: Final = (TransactionState.OPEN, TransactionState.COMMITTED, TransactionState.ABORTED)
_ENDED: Final = (None, TransactionState.COMMITTED, TransactionState.ABORTED)
_TICKS_OF_RETENTION_MS: Final = 600_000
"""For longer than this all ticks have run without faults before a check."""

_OF_COMMITS: Final = ("commit-part", "order", "run")
"""Beginnings of keys of records that are gone when all commits are complete."""


class ControllerChecks:
    """Every method raises WrongStateError."""

    def __init__(self, run: ControllerRun) -> None:
        self._run = run
        self._plane = run.plane
        self._model = run.model

    def check_all(self) -> None:
        """The checks of a control plane in which no message and no tick has anything left to do."""
        self.check_outcomes()
        for stream in STREAMS:
            if self._run.exists(stream):
                self.check_events(stream)
                stored, truncation = self._plane.records.get_with_truncation(SCOPE, stream)
                head = None if truncation is None else truncation.head
                self._run.retention.check_old_events(stored.stream, head, _TICKS_OF_RETENTION_MS)
        self.check_records()
        self.check_segments()

    # Outcomes

    def check_outcomes(self) -> None:
        """Each transaction has the outcome that its clients were told, and a set has one outcome in each stream."""
        for transaction in self._model.transactions.values():
            if self._model.is_present(transaction):
                self._check_outcome(transaction)
        self._check_sets()
        for call in self._model.calls:
            self._check_answer(call)

    def _check_outcome(self, transaction: ModelTransaction) -> None:
        place = transaction.place
        state = self._model.state(place)
        if state is None and not transaction.is_begun and not transaction.events:
            return  # Its creator has found the stream sealed or scaled, and removed the transaction again.
        require(state in _AT_REST, f"{place} is {state}, and nothing is left to do")
        assert state is not None
        if place in self._model.decided:
            may_be_lost = bool(self._model.lost) and state is TransactionState.ABORTED
            require(state is TransactionState.COMMITTED or may_be_lost, f"{place} of a decided set is {state}")
        elif transaction.committed is not None and place not in self._model.lost:
            if state is TransactionState.ABORTED and self._is_begun_after_seal(transaction):
                return
            require(state is TransactionState.COMMITTED, f"{place}, whose commit was accepted, is {state}")
        elif not transaction.is_committed_alone:
            require(not state.is_commit, f"{place} is {state}, and no client has committed it")

    def _is_begun_after_seal(self, transaction: ModelTransaction) -> bool:
        """Whether the client that began it may have found the stream sealed, when another one had committed it."""
        stored = self._plane.records.find(SCOPE, transaction.place[0])
        return not transaction.is_begun and stored is not None and stored.stream.state is StreamState.SEALED

    def _check_sets(self) -> None:
        members: dict[tuple[str, Decision], list[int]] = {}
        for (stream, identifier), decision in self._model.decided.items():
            known = self._model.transactions.get((stream, identifier))
            if known is not None and self._model.is_present(known):
                members.setdefault((stream, decision), []).append(identifier)
        for (stream, decision), identifiers in members.items():
            states = {identifier: self._model.state((stream, identifier)) for identifier in identifiers}
            aborted = {identifier for identifier, state in states.items() if state is TransactionState.ABORTED}
            lost = {identifier for identifier in identifiers if (stream, identifier) in self._model.lost}
            where = f"{decision} in {stream} is {Counter(states.values())}"
            require(bool(lost) or not aborted, f"{where}, and lost nothing")
            is_whole = len(aborted) == len(identifiers)
            require(is_whole or aborted <= lost, f"{where}: {sorted(aborted - lost)} lost nothing")
            require(is_whole or (stream, decision.set_id) not in self._model.noted, f"{where} after a loss was noted")
            early = lost - {identifier for place, identifier in self._model.lost_late if place == stream}
            require(is_whole or not early, f"{where}, and lost {sorted(early)} before it was decided")

    def _check_answer(self, call: SetCall) -> None:
        if call.is_new:
            absent = [place for place in call.places() if place not in self._model.decided]
            require(not absent, f"{call} was new, and {absent} are in no decided set")
        elif call.is_new is False:
            later = [
                decision
                for decision in self._model.decisions
                if (decision.writer, decision.home) == (call.writer, call.home)
            ]
            require(
                any(each.epoch >= call.epoch for each in later), f"{call}: no set of this or a later epoch was decided"
            )
            for place in call.places():
                is_open = self._model.state(place) is TransactionState.OPEN
                if is_open and self._model.is_present(self._model.transactions[place]):
                    self._run.note("open member of a set of a committed epoch")

    # Events

    def check_events(self, stream: str) -> None:
        """A reader sees the events of each committed transaction once, in an order that agrees with the answers."""
        present = [transaction for transaction in self._model.transactions.values() if transaction.place[0] == stream]
        present = [each for each in present if self._model.is_present(each)]
        committed = [each for each in present if self._model.state(each.place) is TransactionState.COMMITTED]
        self._check_merges(stream, present)
        read = self._read(stream)
        self._check_readings(stream, read)
        for key, events in enumerate(read):
            owners = {event: each for each in committed for its, event in each.events if its == key}
            shown = self._without_partly_lost(stream, key, events)
            where = f"{stream}, key {key}"
            surplus = Counter(shown) - Counter(owners.keys())
            require(not surplus, f"{where}: too many of {dict(surplus)}")
            expected = {owner for owner in owners if self._is_behind_head(stream, (key, owner))}
            require(expected == set(shown), f"{where}: {sorted(expected - set(shown))} are missing")
            order = [owners[each] for each in shown]
            self._check_order(where, order)
            for each in committed:
                its = [event for event in shown if owners[event] is each]
                require(its == sorted(its), f"{where}: the events of {each.place} are {its}")

    def _check_merges(self, stream: str, present: list[ModelTransaction]) -> None:
        """Each event of a committed transaction was merged once, and no other one. It may be before the head now."""
        for each in present:
            times = {event: len(self._run.merges.positions.get(event, ())) for event in each.events}
            is_committed = self._model.state(each.place) is TransactionState.COMMITTED
            wrong = {event: count for event, count in times.items() if count != is_committed}
            if wrong and self._may_be_partly_merged(each):
                wrong = {event: count for event, count in wrong.items() if count > 1}
            what = "committed" if is_committed else "not committed"
            require(not wrong, f"{stream}: events of {each.place}, which is {what}, were merged so often: {wrong}")

    def _is_behind_head(self, stream: str, event: Event) -> bool:
        """Whether readers see this event, which was merged once."""
        ((segment, offset),) = self._run.merges.positions[event]
        return offset >= self._starts(stream).get(segment, sys.maxsize)

    def _starts(self, stream: str) -> dict[str, int]:
        """The segments that the stream has, with the offsets at which they start."""
        _, truncation = self._plane.records.get_with_truncation(SCOPE, stream)
        offsets = truncation.cut.offsets if truncation is not None else {}
        starts = {segment_name(SCOPE, stream, segment): offset for segment, offset in offsets.items()}
        return {name: starts.get(name, 0) for name in self._expected_segments(stream)}

    def _read(self, stream: str) -> list[list[int]]:
        """The numbers of the events of each key, in order."""
        found: list[list[int]] = [[] for _ in KEYS]
        for span in self._plane.segments.between(SCOPE, stream, None, None).ranges:
            length = span.end_offset - span.start_offset
            data = self._plane.bare_segment_stores.read(span.name, span.start_offset, length)
            for key, event in parse_events(data):
                found[key].append(event)
        return found

    def _check_readings(self, stream: str, read: list[list[int]]) -> None:
        """A reader that followed the stream from its head has read the beginning of it, and nothing else."""
        incarnation = self._model.incarnation(stream)
        if stream in self._model.truncated:
            return
        for reading in self._model.readings:
            if (reading.stream, reading.incarnation) == (stream, incarnation):
                for key, events in enumerate(reading.events):
                    beginning = read[key][: len(events)]
                    require(events == beginning, f"{stream}, key {key}: a reader has read {events}, not {beginning}")

    def _without_partly_lost(self, stream: str, key: int, events: list[int]) -> list[int]:
        """Without the events of transactions of which a part may have been merged before they were aborted."""
        late = [self._model.transactions[each] for each in self._model.lost_late if each[0] == stream]
        partly = {
            event for each in late if self._may_be_partly_merged(each) for its, event in each.events if its == key
        }
        counts = Counter(events)
        return [event for event in events if event not in partly or counts[event] > 1]

    def _may_be_partly_merged(self, transaction: ModelTransaction) -> bool:
        """Whether it lost a segment after its commit could have begun, so that others may have been merged by then."""
        place = transaction.place
        is_aborted = self._model.state(place) is TransactionState.ABORTED
        decision = self._model.decided.get(place)
        is_noted = decision is not None and (place[0], decision.set_id) in self._model.noted
        return is_aborted and place in self._model.lost_late and not is_noted

    def _check_order(self, where: str, order: list[ModelTransaction]) -> None:
        """A commit that was answered before another was called is first, as is an earlier epoch of a writer."""
        distinct = [order[0], *(after for before, after in pairwise(order) if after is not before)] if order else []
        for index, transaction in enumerate(distinct):
            for later in distinct[index + 1 :]:
                if later is transaction:
                    continue
                was_first = (
                    later.committed is not None
                    and transaction.first_commit is not None
                    and later.committed < transaction.first_commit
                )
                require(
                    not was_first, f"{where}: {transaction.place} is before {later.place}, which was committed first"
                )
                mine, its = self._model.decided.get(transaction.place), self._model.decided.get(later.place)
                if mine and its and (mine.writer, mine.home) == (its.writer, its.home):
                    is_turned = mine.epoch > its.epoch and mine.number > its.number
                    require(not is_turned, f"{where}: {mine} is before {its}")

    # Records

    def check_records(self) -> None:
        """No record of a request or a commit is left, and all streams are at rest."""
        pending = self._model.pending_sets()
        for (partition, sort), (_, body) in self._plane.everything().items():
            require(not partition.startswith("requests/"), f"the intent {sort} is left: {body}")
            what, _, name = sort.partition("/")
            if not partition.startswith("transactions/") or name in pending:
                continue
            require(what not in _OF_COMMITS, f"{partition} {sort} is left: {body}")
            stored = self._plane.records.find(SCOPE, partition.rpartition("/")[2])
            require(stored is not None, f"{partition} {sort} is left of a stream that was deleted: {body}")
            assert stored is not None
            if what == "open":
                require(body["state"] == "OPEN", f"{partition} {sort} is left: {body}")
                # A service that failed while it began a transaction has not seen the seal: the transaction times out.
                known = self._model.transactions.get((stored.stream.name, int(name, 16)))
                is_wrong = known is not None and known.is_begun and stored.stream.state is StreamState.SEALED
                require(not is_wrong, f"{partition} {sort} is open in a sealed stream")
        for stream in STREAMS:
            self._check_at_rest(stream)

    def _check_at_rest(self, stream: str) -> None:
        stored = self._plane.records.find(SCOPE, stream)
        if stored is None:
            return
        found = stored.stream
        require(found.state in (StreamState.ACTIVE, StreamState.SEALED), f"{stream} is {found.state}")
        require(found.pending is None and found.following is None, f"{stream} has a request: {found}")

    def check_no_pending_set(self) -> None:
        """After a writer has asked for its epoch, no set of it is pending."""
        for home, writer in self._model.writers():
            stored = find_commit_writer(self._plane.bare_store, SCOPE, home, writer)
            is_pending = stored is not None and stored.writer.pending is not None
            require(not is_pending, f"{writer} at {home} has a pending set: {stored}")

    def check_all_ended(self) -> None:
        """No transaction is open after the longest lease."""
        for place in self._model.transactions:
            state = self._model.state(place)
            require(state in _ENDED, f"{place} is {state}")

    # Segments

    def check_segments(self, *, orphans: bool = False) -> None:
        """Each segment of an epoch exists, and no segment of a transaction that has ended, except for late ones.

        With `orphans` all transactions that had ended are forgotten, and no other segment may exist, except those that
        the stream has noted to delete.
        """
        opened = {sort.partition("/")[2] for partition, sort in self._plane.everything() if sort.startswith("open/")}
        names = self._plane.bare_segment_stores.names()
        ended = [name for name in names if TRANSACTION in name and name.partition(TRANSACTION)[2] not in opened]
        left = [each for each in ended if not self._run.late.may_exist(each, after_all=orphans)]
        require(not left, f"segments of transactions that have ended: {left}")
        for stream in STREAMS:
            mark = mark_segment_name(SCOPE, stream)
            prefix = f"{SCOPE}/{stream}/"
            present = {name for name in names if TRANSACTION not in name and name.startswith(prefix) and name != mark}
            expected = self._expected_segments(stream)
            require(expected <= present, f"{stream}: segments {sorted(expected - present)} are missing")
            unknown = present - expected
            if orphans:
                noted = self._noted_segments(stream)
                require(unknown <= noted, f"{stream}: segments {sorted(unknown - noted)} are left")

    def _expected_segments(self, stream: str) -> set[str]:
        """The segments of all epochs, as far as they were not truncated."""
        if not self._run.exists(stream):
            return set()
        stored, truncation = self._plane.records.get_with_truncation(SCOPE, stream)
        found = stored.stream
        epochs = self._plane.records.history.epochs(found, range(found.epoch.number + 1))
        every = {segment.segment_id: segment for epoch in epochs for segment in epoch.segments}
        left = segments_left(every.values(), truncation)
        return {segment_name(SCOPE, stream, segment.segment_id) for segment in left}

    def _noted_segments(self, stream: str) -> set[str]:
        stored = self._plane.records.find(SCOPE, stream)
        leftovers = None if stored is None else find_leftovers(self._plane.bare_store, stored.stream)
        return {segment_name(SCOPE, stream, identifier) for identifier in (leftovers.identifiers if leftovers else ())}

    def check_forgotten(self) -> None:
        """When all leases and the memory of outcomes have ended, only the committed epochs of writers are left."""
        for (partition, sort), (_, body) in self._plane.everything().items():
            is_due = partition.startswith(("transactions-due/", "creations/", "requests/"))
            is_of_transaction = partition.startswith("transactions/") and not sort.startswith("commit-writer/")
            require(not is_due and not is_of_transaction, f"{partition} {sort} is left: {body}")

    def check_deleted(self) -> None:
        """Nothing is left of streams that were deleted but their tombstones."""
        left = ("transactions", "creations/", "requests/", "retention-due", "watermark")
        for (partition, sort), (_, body) in self._plane.everything().items():
            require(not partition.startswith(left), f"{partition} {sort} is left of deleted streams: {body}")
            if partition.startswith("streams/"):
                require(sort == "current", f"{partition} {sort} is left of deleted streams: {body}")
        names = self._plane.bare_segment_stores.names()
        left_segments = [name for name in names if not self._run.late.may_exist(name, after_all=True)]
        require(not left_segments, f"segments of deleted streams are left: {left_segments}")


def require(condition: bool, text: str) -> None:
    """Raises WrongStateError with the text."""
    if not condition:
        raise WrongStateError(text)

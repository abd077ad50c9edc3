"""What the calls of the segment stores leave: where each event was merged, and segments that are created late.

A call that creates a segment after its transaction has ended deletes it again before it ends. If the call is
interrupted, the controller deletes the segment when it forgets the transaction, or never if it has forgotten it
already: segments of transactions have no notes (decision 0046).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fuzz.control_plane import ControlPlane
from fuzz.controller_model import EVENT_BYTES, SCOPE, STREAMS, TRANSACTION, Event, parse_events, place_of_segment
from fuzz.watched_ports import Crash
from headrace.metadata.transaction import decode_transaction, done_key, open_key
from headrace.model.errors import UnavailableError
from headrace.model.transactions import Transaction, TransactionState

MERGE: Final = "segment store merge_segments"
"""The kind of the call after which `follow` finds new events."""

Position = tuple[str, int]
"""A segment of a stream, and an offset in it."""


class WatchedMerges:
    """`positions` are all places of an event that ever were, also in segments that are deleted now."""

    def __init__(self, plane: ControlPlane) -> None:
        self.positions: dict[Event, list[Position]] = {}
        self.times_ms: dict[Event, int] = {}
        self._clock = plane.clock
        self._stores = plane.bare_segment_stores
        self._lengths: dict[str, int] = {}
        self._prefixes = tuple(f"{SCOPE}/{stream}/" for stream in STREAMS)

    def follow(self) -> None:
        """Learn of the events that the last call has merged. Raises WrongStateError."""
        for name in self._stores.names():
            if not name.startswith(self._prefixes) or TRANSACTION in name:
                continue
            known, length = self._lengths.get(name, 0), self._stores.segment_info(name).length
            self._lengths[name] = length
            for index, event in enumerate(parse_events(self._stores.read(name, known, length - known))):
                self.times_ms.setdefault(event, self._clock.now_ms())
                self.positions.setdefault(event, []).append((name, known + index * EVENT_BYTES))


class LateSegments:
    """Finds the segments by their names, after each call of a segment store."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._present: set[str] = set()
        self._calls: dict[int, dict[str, bool]] = {}
        """What each process has created late in the call that it makes now: as `_may_exist`."""
        self._may_exist: dict[str, bool] = {}
        """Late segments that no call has deleted: whether their transaction was forgotten when they were created."""

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call of a client that creates segments."""
        made: dict[str, bool] = {}
        self._calls[threading.get_ident()] = made
        try:
            yield
        except (Crash, UnavailableError):
            self._may_exist |= {name: is_forgotten for name, is_forgotten in made.items() if name in self._present}
            raise
        finally:
            del self._calls[threading.get_ident()]

    def follow(self) -> None:
        """Learn of the segments that the last call of a segment store has created or deleted."""
        present = {name for name in self._plane.bare_segment_stores.names() if TRANSACTION in name}
        for name in present - self._present:
            transaction = self._transaction(name)
            if transaction is None or transaction.state is not TransactionState.OPEN:
                self._note(name, transaction)
        for name in self._present - present:
            self._may_exist.pop(name, None)
        self._present = present

    def may_exist(self, name: str, *, after_all: bool) -> bool:
        """Whether the segment may exist though its transaction has ended; `after_all` when that is forgotten."""
        return name in self._may_exist and (self._may_exist[name] or not after_all)

    def _note(self, name: str, transaction: Transaction | None) -> None:
        self._calls.get(threading.get_ident(), {})[name] = transaction is None
        if transaction is None or transaction.state is not TransactionState.COMMITTING:
            return
        if int(name.split("/")[2].partition(".")[0]) in transaction.requested_again - transaction.unconfirmed_segments:
            # The call leaves the segment: it cannot know whether it has events of another client that must be merged.
            self._may_exist[name] = False

    def _transaction(self, name: str) -> Transaction | None:
        for key in (open_key, done_key):
            record = self._plane.bare_store.get(key(SCOPE, *place_of_segment(name)))
            if record is not None:
                return decode_transaction(record.body)
        return None

"""Volumes that are lost with segments of transactions, at any time or right after a check for losses."""

from __future__ import annotations

from typing import Final

from fuzz.controller_model import SCOPE, TRANSACTION, Place, place_of_segment
from fuzz.controller_run import ControllerRun
from headrace.metadata.transaction import decode_transaction, open_key
from headrace.model.transactions import Transaction, TransactionState

CHECK: Final = "segment store incomplete_segments"
"""The kind of the call that checks for losses."""

_AFTER_CHECKS: Final = (0.0, 0.0, 0.05)
_AFTER_CHECKS_OF_STORM: Final = (0.0, 0.3)
"""How often a segment is lost after a check: each seed and each storm has one of these."""
_AFTER_CHECKS_MAX: Final = 4


class Losses:
    """Loses segments, and tells the model what this means for their transactions."""

    def __init__(self, run: ControllerRun) -> None:
        self._run = run
        self._random = run.random
        self._stores = run.plane.bare_segment_stores
        self._after_checks = run.random.choice(_AFTER_CHECKS)
        self._left = _AFTER_CHECKS_MAX

    def begin_storm(self) -> None:
        """Choose how often a segment is lost after a check, until the next storm begins."""
        self._after_checks = self._random.choice(_AFTER_CHECKS_OF_STORM)
        self._left = _AFTER_CHECKS_MAX

    def lose_volumes(self) -> None:
        """The work of a process: lose volumes, some time after each other."""
        for _ in range(self._random.randint(1, 3)):
            for _ in range(self._random.randint(1, 30)):
                self._run.give_turn()
            self.lose_one(TRANSACTION)

    def follow_check(self) -> None:
        """A process has just checked for losses. What is lost now, it does not know."""
        if self._left > 0 and self._random.random() < self._after_checks:
            self._left -= 1
            self.lose_one(TRANSACTION)

    def lose_one(self, part_of_name: str) -> None:
        """Lose a segment of a transaction that a client knows, with this text in its name."""
        names = [name for name in self._stores.names() if TRANSACTION in name and part_of_name in name]
        if not names:
            return
        name = self._random.choice(names)
        place = place_of_segment(name)
        if place not in self._run.model.transactions:
            return
        self._stores.lose_volume(name)
        self._note(name, place)
        self._run.note("lost volume")
        self._run.trace.note(f"lost {name}")

    def _note(self, name: str, place: Place) -> None:
        model = self._run.model
        if place in model.lost:
            return
        model.lost.add(place)
        record = self._run.plane.bare_store.get(open_key(SCOPE, *place))
        if record is None or not self._is_seen_by_next_check(name, place, decode_transaction(record.body)):
            model.lost_late.add(place)

    def _is_seen_by_next_check(self, name: str, place: Place, transaction: Transaction) -> bool:
        """Whether each commit of the transaction will check this segment. No commit of it has begun."""
        if transaction.state is TransactionState.COMMITTING:
            is_waiting = transaction.commit_set is None or place in self._run.model.decided
            return not is_waiting and _has_events(name, transaction)
        return transaction.state is TransactionState.OPEN and _has_events(name, transaction)


def _has_events(name: str, transaction: Transaction) -> bool:
    number = int(name.split("/")[2].partition(".")[0])
    return number not in transaction.unconfirmed_segments

"""Clients that continue transactions of others: they find them in the list, or were told their ids."""

from __future__ import annotations

from typing import Final

from fuzz.controller_clients import Clients
from fuzz.controller_model import LONG_MS, SCOPE, STREAMS, ModelTransaction, Place
from fuzz.controller_run import ControllerRun
from headrace.metadata.commit_records import find_commit_part
from headrace.metadata.transaction import decode_transaction, open_key
from headrace.model.errors import IllegalStateError
from headrace.model.transactions import TransactionState

_LISTED_MAX: Final = 20
_TURNS_MAX: Final = 15
_ATTEMPTS: Final = 8
_TURNS_TO_PREPARE: Final = 400


class Successors:
    """Each public method is the work of one process."""

    def __init__(self, run: ControllerRun, clients: Clients) -> None:
        self._run = run
        self._random = run.random
        self._clients = clients

    def continue_listed(self) -> None:
        """Find open transactions of a stream, write into them, and commit some."""
        stream = self._random.choice(STREAMS)
        for _ in range(self._random.randint(2, 6)):
            with self._run.refusals_noted("successor"):
                found = self._run.service().list_open(SCOPE, stream, _LISTED_MAX).items
                opened = [each for each in found if each.state is TransactionState.OPEN]
                if opened:
                    transaction = self._random.choice(opened)
                    is_long = transaction.lease_end_ms - transaction.created_ms >= LONG_MS
                    known = self._run.model.add((stream, transaction.transaction_id), may_expire=not is_long)
                    self._write(known)
                    if self._random.random() < 0.4:
                        self._commit(known)
            self._wait()

    def share(self, place: Place, turns: int) -> None:
        """Write into a transaction, and perhaps commit it, so many turns after the others have begun."""
        transaction = self._run.model.transactions[place]
        for _ in range(turns):
            self._run.give_turn()
        wanted, is_committed = self._random.randint(1, 3), self._random.random() < 0.4
        for _ in range(_ATTEMPTS):  # It is refused while a commit set has prepared the transaction.
            self._wait()
            with self._run.refusals_noted("successor"):
                if wanted > 0:
                    self._write(transaction)
                    wanted -= 1
                elif not is_committed:
                    self._commit(transaction)
                    is_committed = True

    def abort(self, place: Place, shared: Place) -> None:
        """Abort a transaction once a commit set of it has prepared the shared one, or after some time."""
        store = self._run.plane.bare_store
        for _ in range(_TURNS_TO_PREPARE):
            self._run.give_turn()
            record = store.get(open_key(SCOPE, *shared))
            commit_set = None if record is None else decode_transaction(record.body).commit_set
            part = None if commit_set is None else find_commit_part(store, SCOPE, place[0], commit_set)
            if part is not None and place[1] in part.part.members:
                break
        with self._run.refusals_noted("successor"):
            self._run.service().abort_transaction(SCOPE, *place)

    def _write(self, transaction: ModelTransaction) -> None:
        view = self._run.service().segments_of(SCOPE, *transaction.place)
        self._clients.write_event(transaction, view.segments, on_demand=view.on_demand)
        self._run.note("event of a successor")

    def _commit(self, transaction: ModelTransaction) -> None:
        """Only with an event: without one, the segments may not exist yet, which a commit takes for a loss."""
        if not transaction.events:
            raise IllegalStateError(f"{transaction.place} has no event")
        self._run.retry(lambda: self._clients.commit_alone(self._run.service(), transaction))
        self._run.note("commit of a successor")

    def _wait(self) -> None:
        for _ in range(self._random.randint(0, _TURNS_MAX)):
            self._run.give_turn()

"""Dead-letter handling: a message that failed for the last time becomes a dead letter, and its request is rolled back.

The letter and the rollback are one transaction. So no request disappears without a letter, and no letter tells of a
rollback that did not happen. A request that must complete keeps its intent: the sweeper sends it again every few
minutes, and its letter says that it is stuck and why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from headrace.controller.operations.registry import undo_request
from headrace.metadata.dead_letter import DeadLetterRecords, StoredLetter, put_letter
from headrace.metadata.intent import intent_key, read_intent
from headrace.metadata.optimistic_retry import ATTEMPTS_PER_MESSAGE_MAX, repeat_on_conflict
from headrace.metadata.request_messages import parse_request_message
from headrace.metadata.stream import current_key
from headrace.metadata.transaction import open_key
from headrace.metadata.transaction_messages import ABORT, COMMIT
from headrace.metadata.transaction_messages import parse_transaction_message as parse_transaction_message
from headrace.model.dead_letters import Cause, DeadLetter, DeadLetterStatus, Delivery, new_letter
from headrace.model.errors import ConflictError, IllegalStateError, InvalidRequestError, NotFoundError
from headrace.model.requests import PendingRequest, ResourceKind
from headrace.ports.metadata_store import ANY_VERSION, Check, Key, MetadataStore


def handle_dead_letter(
    store: MetadataStore, delivery: Delivery, cause: Cause, now_ms: int, *, only_unknown: bool = False
) -> DeadLetter | None:
    """Write the letter of a message that is not delivered again; None if its request is complete after all.

    With `only_unknown` a letter that exists stays unchanged: the last processor of the message wrote it.

    Raises:
        ConflictError: other processes keep changing the same resource; repeat.
        UnavailableError: the metadata store does not answer.
    """
    records = DeadLetterRecords(store)
    letter = new_letter(delivery, cause, now_ms)
    return repeat_on_conflict(
        lambda: _try_to_write(store, records, letter, only_unknown), ATTEMPTS_PER_MESSAGE_MAX, ConflictError
    )


def _try_to_write(
    store: MetadataStore, records: DeadLetterRecords, letter: DeadLetter, only_unknown: bool
) -> DeadLetter | None:
    known = records.find_by_identity(letter.identity)
    if known is not None and only_unknown:
        return known.letter
    try:
        scope, name, request = parse_request_message(letter.body or {})
    except InvalidRequestError:
        return _write_other_letter(store, known, letter)
    return _write_request_letter(store, known, letter, scope, name, request)


def _write_request_letter(
    store: MetadataStore,
    known: StoredLetter | None,
    letter: DeadLetter,
    scope: str,
    name: str,
    request: PendingRequest,
) -> DeadLetter | None:
    """Roll the request back if possible; else the letter is stuck until the request is complete."""
    # Read first: when a batch of commits ends meanwhile, a request that waited for it can be rolled back.
    stream = store.get(current_key(scope, name)) if request.kind.resource is ResourceKind.STREAM else None
    unchanged = [] if stream is None else [Check(stream.key, stream.version)]
    try:
        undo = undo_request(store, scope, name, request)
    except (IllegalStateError, NotFoundError):
        place = intent_key(scope, name, request.kind.resource)
        return _write_stuck_letter(store, known, letter, place, request, unchanged)
    undone = replace(letter, status=DeadLetterStatus.UNDONE, parameters=undo.parameters)
    undo.write(*put_letter(known, undone))
    return undone


def _write_stuck_letter(
    store: MetadataStore,
    known: StoredLetter | None,
    letter: DeadLetter,
    place: Key,
    request: PendingRequest,
    unchanged: Sequence[Check],
) -> DeadLetter | None:
    """The letter of a request that must complete; None if it is complete, and its intent at `place` was deleted."""
    intent = store.get(place)
    if intent is None or read_intent(intent).request != request:
        return None
    stuck = _stuck(letter, place)
    store.write(Check(place, intent.version), *unchanged, *put_letter(known, stuck))
    return stuck


def _write_other_letter(store: MetadataStore, known: StoredLetter | None, letter: DeadLetter) -> DeadLetter | None:
    """The letter of a message of a transaction is stuck until the transaction is completed: a tick sends it again.

    The letter of any other message only keeps the message.
    """
    place = _open_transaction(letter)
    if place is None:
        store.write(*put_letter(known, letter))
        return letter
    if store.get(place) is None:
        return None
    stuck = _stuck(letter, place)
    store.write(Check(place, ANY_VERSION), *put_letter(known, stuck))
    return stuck


def _open_transaction(letter: DeadLetter) -> Key | None:
    """The key of the message's transaction while it is not completed; None if the message is not of a transaction."""
    for kind in (COMMIT, ABORT):
        with contextlib.suppress(InvalidRequestError):
            message = parse_transaction_message(letter.body or {}, kind)
            return open_key(message.scope, message.stream, message.transaction_id)
    return None


def _stuck(letter: DeadLetter, intent: Key) -> DeadLetter:
    return replace(letter, status=DeadLetterStatus.STUCK, intent=(intent.partition, intent.sort))

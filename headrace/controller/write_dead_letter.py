"""What happens to a message that failed for the last time: it becomes a dead letter, and its stream usable if it can.

The letter and the rollback are one transaction, so that no request disappears without a letter and no letter tells of a
rollback that did not happen. A request that is past the point of no return keeps its intent: the sweeper sends it again
every few minutes, for ever, and its letter says that it is stuck and why.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from headrace.codec.records.intent_record import intent_of_body
from headrace.controller.undo_request import undo_request, write_undo
from headrace.metadata import keys
from headrace.metadata.dead_letter_records import DeadLetterRecords, StoredLetter, put_letter
from headrace.metadata.optimistic_retry import ATTEMPTS_PER_MESSAGE_MAX, repeat_on_conflict
from headrace.metadata.request_messages import parse_message
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.transaction_keys import open_key
from headrace.metadata.transaction_messages import ABORT, COMMIT
from headrace.metadata.transaction_messages import parse_message as parse_transaction_message
from headrace.model.dead_letters import Cause, DeadLetter, DeadLetterStatus, Delivery, new_letter
from headrace.model.errors import ConflictError, IllegalStateError, InvalidRequestError
from headrace.model.requests import PendingRequest, ResourceKind
from headrace.ports.metadata_store import ANY_VERSION, Check, Key, MetadataStore


def bury_message(
    store: MetadataStore, delivery: Delivery, cause: Cause, now_ms: int, *, only_unknown: bool = False
) -> DeadLetter | None:
    """Write the letter of a message that will not be delivered again; None if what it asks for is done after all.

    With `only_unknown` a message whose letter is there already changes nothing: its last processor wrote it.

    Raises:
        ConflictError: others change the same stream all the time; repeat.
        UnavailableError: the store does not answer.
    """
    records = DeadLetterRecords(store)
    letter = new_letter(delivery, cause, now_ms)
    return repeat_on_conflict(
        lambda: _try_to_bury(store, records, letter, only_unknown), ATTEMPTS_PER_MESSAGE_MAX, ConflictError
    )


def _try_to_bury(
    store: MetadataStore, records: DeadLetterRecords, letter: DeadLetter, only_unknown: bool
) -> DeadLetter | None:
    known = records.find_by_identity(letter.identity)
    if known is not None and only_unknown:
        return known.letter
    request = _request_of(letter)
    if request is None:
        return _bury_other_message(store, known, letter)
    bury = _bury_stream_request if request[2].kind.resource is ResourceKind.STREAM else _bury_other_request
    return bury(store, known, letter, *request)


def _request_of(letter: DeadLetter) -> tuple[str, str, PendingRequest] | None:
    """Scope, name and request of the letter's message, if it is a request's."""
    try:
        return parse_message(letter.body or {})
    except InvalidRequestError:
        return None


def _bury_stream_request(
    store: MetadataStore,
    known: StoredLetter | None,
    letter: DeadLetter,
    scope: str,
    stream: str,
    request: PendingRequest,
) -> DeadLetter | None:
    records = StreamRecords(store)
    stored = records.find(scope, stream)
    if stored is None or not (stored.stream.is_pending(request) or stored.stream.is_following(request)):
        return None
    try:
        undo = undo_request(records, stored, request)
    except IllegalStateError:
        stuck = _stuck(letter, keys.intent_key(scope, stream))
        records.while_unchanged(stored, *put_letter(known, stuck))
        return stuck
    undone = replace(letter, status=DeadLetterStatus.UNDONE, parameters=undo.parameters)
    write_undo(records, stored, undo, *put_letter(known, undone))
    return undone


def _bury_other_request(
    store: MetadataStore,
    known: StoredLetter | None,
    letter: DeadLetter,
    scope: str,
    name: str,
    request: PendingRequest,
) -> DeadLetter | None:
    """Of a scope, reader group or table: it runs as long as its intent stands, and is never taken back."""
    place = keys.intent_key(scope, name, request.kind.resource)
    intent = store.get(place)
    if intent is None or intent_of_body(intent.body).request != request:
        return None
    stuck = _stuck(letter, place)
    store.write(Check(place, intent.version), *put_letter(known, stuck))
    return stuck


def _bury_other_message(store: MetadataStore, known: StoredLetter | None, letter: DeadLetter) -> DeadLetter | None:
    """About a transaction: stuck until that is completed, for a tick sends it again. Anything else is kept as it is."""
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
    """Where the record lies of the transaction that the letter's message is about, as long as it is not completed."""
    for kind in (COMMIT, ABORT):
        with contextlib.suppress(InvalidRequestError):
            message = parse_transaction_message(letter.body or {}, kind)
            return open_key(message.scope, message.stream, message.transaction_id)
    return None


def _stuck(letter: DeadLetter, intent: Key) -> DeadLetter:
    return replace(letter, status=DeadLetterStatus.STUCK, intent=(intent.partition, intent.sort))

"""A dead letter: a record in the list, sorted by time, and one that finds the letter by the identity of its message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.intent import decode_requester, requester_fields
from headrace.metadata.record_layout import decoded, versioned
from headrace.model.dead_letters import Cause, DeadLetter, DeadLetterStatus, died_again
from headrace.model.limits import PAGE_BYTES_MAX
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Replace, Write

DEAD_LETTERS_PARTITION = "dead-letters"
POINTER_SORT = "letter"


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter as it was read, and the version of its record."""

    letter: DeadLetter
    version: int


def pointer_partition(identity: str) -> str:
    return f"dead-letter/{identity}"


def letter_key(letter_id: str) -> Key:
    return Key(DEAD_LETTERS_PARTITION, letter_id)


def pointer_key(identity: str) -> Key:
    return Key(pointer_partition(identity), POINTER_SORT)


def stuck_request_key(letter: DeadLetter) -> Key | None:
    """The record that exists as long as the stuck request of a letter is not complete; None for other letters."""
    return Key(*letter.intent) if letter.status is DeadLetterStatus.STUCK and letter.intent else None


def pointer_body(letter_id: str) -> dict[str, Any]:
    return versioned(letter=letter_id)


def decode_pointer(body: Body) -> str:
    return decoded("dead letter pointer", body, lambda fields: str(fields["letter"]))


def dead_letter_body(letter: DeadLetter) -> dict[str, Any]:
    return versioned(
        letter=letter.letter_id,
        queue=letter.queue,
        group=letter.group,
        message=letter.message,
        status=str(letter.status),
        cause=[letter.cause.code, letter.cause.message],
        first_try=letter.first_try_ms,
        last_try=letter.last_try_ms,
        tries=letter.tries,
        kind=letter.kind,
        subject=letter.subject,
        request=letter.request_id,
        replays=letter.replays,
        parameters=dict(letter.parameters),
        intent=list(letter.intent) if letter.intent else None,
        **requester_fields(letter.requester),
    )


def decode_dead_letter(body: Body) -> DeadLetter:
    return decoded("dead letter", body, _dead_letter)


class DeadLetterRecords:
    """Reads dead letters."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def find(self, letter_id: str) -> StoredLetter | None:
        """The letter of this id, or None; one read."""
        record = self._store.get(letter_key(letter_id))
        return StoredLetter(decode_dead_letter(record.body), record.version) if record else None

    def find_by_identity(self, identity: str) -> StoredLetter | None:
        """The letter of a message, or None; two reads if there is one, else one read."""
        pointer = self._store.get(pointer_key(identity))
        return self.find(decode_pointer(pointer.body)) if pointer else None

    def page(self, first: str, limit: int) -> tuple[list[DeadLetter], str | None]:
        """Letters ordered by id, which is the order in which they first became dead letters; one query.

        Returns the letters, and the id after which more follow, None at the end.
        """
        page = self._store.query(DEAD_LETTERS_PARTITION, first=first, limit=limit, bytes_max=PAGE_BYTES_MAX)
        return [decode_dead_letter(record.body) for record in page.records], page.next_after


def put_letter(known: StoredLetter | None, letter: DeadLetter) -> tuple[Write, ...]:
    """The writes that record a letter, or add its failure to `known`, an earlier letter of the same request."""
    if known is None:
        return (
            Create(letter_key(letter.letter_id), dead_letter_body(letter)),
            Create(pointer_key(letter.identity), pointer_body(letter.letter_id)),
        )
    return (replace_letter(known, died_again(known.letter, letter)),)


def replace_letter(stored: StoredLetter, after: DeadLetter) -> Replace:
    return Replace(letter_key(after.letter_id), dead_letter_body(after), stored.version)


def delete_letter(stored: StoredLetter) -> tuple[Delete, Delete]:
    letter = stored.letter
    return Delete(letter_key(letter.letter_id), stored.version), Delete(pointer_key(letter.identity), None)


def _dead_letter(body: Body) -> DeadLetter:
    code, message = body["cause"]
    return DeadLetter(
        letter_id=str(body["letter"]),
        queue=str(body["queue"]),
        group=str(body["group"]),
        message=str(body["message"]),
        status=DeadLetterStatus(body["status"]),
        cause=Cause(str(code), str(message)),
        first_try_ms=int(body["first_try"]),
        last_try_ms=int(body["last_try"]),
        tries=int(body["tries"]),
        kind=str(body["kind"]),
        subject=str(body["subject"]),
        request_id=str(body["request"]),
        replays=int(body["replays"]),
        parameters=dict(body["parameters"]),
        intent=_intent(body["intent"]),
        requester=decode_requester(body),
    )


def _intent(place: Any) -> tuple[str, str] | None:
    if place is None:
        return None
    partition, sort = place
    return str(partition), str(sort)

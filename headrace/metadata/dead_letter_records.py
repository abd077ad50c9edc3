"""The records of dead letters: one in the list, and one that finds the letter by the identity of its message."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.codec.records.dead_letter_record import (
    DEAD_LETTERS_PARTITION,
    POINTER_SORT,
    dead_letter_body,
    dead_letter_of_body,
    letter_id_of_body,
    pointer_body,
    pointer_partition,
)
from headrace.model.dead_letters import DeadLetter, died_again
from headrace.model.limits import PAGE_BYTES_MAX
from headrace.ports.metadata_store import Create, Delete, Key, MetadataStore, Page, Replace, Write


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter as it was read, and the version of its record."""

    letter: DeadLetter
    version: int


class DeadLetterRecords:
    """Reads dead letters."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def find(self, letter_id: str) -> StoredLetter | None:
        """The letter of this id, or None; one read."""
        record = self._store.get(_letter_key(letter_id))
        return StoredLetter(dead_letter_of_body(record.body), record.version) if record else None

    def find_by_identity(self, identity: str) -> StoredLetter | None:
        """The letter of a message, or None; two reads if there is one, else one read."""
        pointer = self._store.get(_pointer_key(identity))
        return self.find(letter_id_of_body(pointer.body)) if pointer else None

    def page(self, first: str, limit: int) -> Page:
        """Letters ordered by id, which is the order in which they first became dead letters; one query."""
        return self._store.query(DEAD_LETTERS_PARTITION, first=first, limit=limit, bytes_max=PAGE_BYTES_MAX)


def put_letter(known: StoredLetter | None, letter: DeadLetter) -> tuple[Write, ...]:
    """The writes that record a letter, or add its failure to `known`, an earlier letter of the same request."""
    if known is None:
        return (
            Create(_letter_key(letter.letter_id), dead_letter_body(letter)),
            Create(_pointer_key(letter.identity), pointer_body(letter.letter_id)),
        )
    return (replace_letter(known, died_again(known.letter, letter)),)


def replace_letter(stored: StoredLetter, after: DeadLetter) -> Replace:
    return Replace(_letter_key(after.letter_id), dead_letter_body(after), stored.version)


def delete_letter(stored: StoredLetter) -> tuple[Delete, Delete]:
    letter = stored.letter
    return Delete(_letter_key(letter.letter_id), stored.version), Delete(_pointer_key(letter.identity), None)


def _letter_key(letter_id: str) -> Key:
    return Key(DEAD_LETTERS_PARTITION, letter_id)


def _pointer_key(identity: str) -> Key:
    return Key(pointer_partition(identity), POINTER_SORT)

"""Requests that run as workflows: what they are called, on which noun they work, and how one is told from another."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Noun(StrEnum):
    """What a request works on. The values are part of stored keys and of messages."""

    STREAM = "stream"
    SCOPE = "scope"
    READER_GROUP = "reader-group"
    KEY_VALUE_TABLE = "key-value-table"


class RequestKind(StrEnum):
    """Operations that run as workflows behind a request queue."""

    CREATE_STREAM = "create_stream"
    COMMIT_TRANSACTIONS = "commit_transactions"
    UPDATE_STREAM = "update_stream"
    TRUNCATE_STREAM = "truncate_stream"
    SCALE_STREAM = "scale_stream"
    SEAL_STREAM = "seal_stream"
    DELETE_STREAM = "delete_stream"
    DELETE_SCOPE = "delete_scope"
    CREATE_READER_GROUP = "create_reader_group"
    UPDATE_READER_GROUP = "update_reader_group"
    DELETE_READER_GROUP = "delete_reader_group"
    CREATE_KEY_VALUE_TABLE = "create_key_value_table"
    DELETE_KEY_VALUE_TABLE = "delete_key_value_table"

    @property
    def noun(self) -> Noun:
        """The kind decides the noun, so that neither intents nor messages need to say it."""
        return _OTHER_NOUNS.get(self, Noun.STREAM)


_OTHER_NOUNS = {
    RequestKind.DELETE_SCOPE: Noun.SCOPE,
    RequestKind.CREATE_READER_GROUP: Noun.READER_GROUP,
    RequestKind.UPDATE_READER_GROUP: Noun.READER_GROUP,
    RequestKind.DELETE_READER_GROUP: Noun.READER_GROUP,
    RequestKind.CREATE_KEY_VALUE_TABLE: Noun.KEY_VALUE_TABLE,
    RequestKind.DELETE_KEY_VALUE_TABLE: Noun.KEY_VALUE_TABLE,
}


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """The operation that runs; `request_id` is never used twice for one name of a noun."""

    kind: RequestKind
    request_id: str


def scoped_subject_name(noun: Noun, scope: str, name: str) -> str:
    """How messages are grouped and buckets chosen: `scope/name`, or `scope` for a scope, whose own name is empty."""
    return scope if noun is Noun.SCOPE else f"{scope}/{name}"

"""The metadata store: versioned records under conditional writes, and nothing more.

A record has a key (partition, sort), a version that starts at 0, or where its creator says, and grows by one with each
replacement, and a body of plain JSON values. All reads are strongly consistent. Stream metadata, cluster records and
the chunk directory are all behind this port. The modules that own the records define their meaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from headrace.model.errors import ConflictError, InvalidRequestError, UnavailableError

Body = Mapping[str, Any]
WRITES_PER_TRANSACTION_MAX = 100
READS_PER_BATCH_MAX = 100
BODY_BYTES_MAX = 390 * 1024
"""Of a body as compact ASCII JSON: DynamoDB's item limit of 400 KB, less room for keys and version."""

UNANSWERED_WRITE_S = 20.0
"""So long after its failure a write without an answer may take effect: a few times the time-out of its request."""


class Key(msgspec.Struct, frozen=True):
    """The key of a record. Records of one partition are ordered by `sort` (UTF-8 bytes)."""

    partition: str
    sort: str


class Record(msgspec.Struct, frozen=True):
    """The record at a key; `version` is that of its creation and grows by one with each replacement."""

    key: Key
    version: int
    body: Body


class Create(msgspec.Struct, frozen=True):
    """Write `version`; fails if the record exists.

    Another version than 0 is for a record that may be removed and created again: a write that rests on a read of the
    former one fails if the versions of the two differ.
    """

    key: Key
    body: Body
    version: int = 0


class Replace(msgspec.Struct, frozen=True):
    """Write `version + 1`; fails unless the stored version is `version`."""

    key: Key
    body: Body
    version: int


class Delete(msgspec.Struct, frozen=True):
    """Remove; fails unless the stored version is `version`. `version=None` removes any record, or none."""

    key: Key
    version: int | None


class Check(msgspec.Struct, frozen=True):
    """Write nothing; fails unless the stored version is `version`, or with None unless there is no record.

    `version=-1` only asks that the record exists.
    """

    key: Key
    version: int | None


ANY_VERSION = -1
Write = Create | Replace | Delete | Check


class Page(msgspec.Struct, frozen=True):
    """Records in key order, and the sort key to continue after (None at the end)."""

    records: Sequence[Record]
    next_after: str | None


class WriteConflictError(ConflictError):
    """A condition of a write did not hold; nothing was written.

    `failed` maps the index of each failed write to the record found there, None if there was none.
    """

    def __init__(self, message: str, failed: Mapping[int, Record | None]) -> None:
        super().__init__(message)
        self.failed = dict(failed)

    def __reduce__(self) -> tuple[Any, ...]:
        return (WriteConflictError, (self.message, self.failed))


class ItemRefusedError(InvalidRequestError):
    """The store refuses a record or a key for good: it is too large, or not valid. A repetition cannot succeed.

    Only the records of the request are concerned. Other records can be read and written.
    """


METADATA_STORE_REFUSED = "metadata_store_refused"
"""The code of an UnavailableError when the store did answer, but refused: credentials, policies, keys, clocks."""


def metadata_store_refused(what: str, cause: str) -> UnavailableError:
    """The error for a refusal with the code `cause` of the store. Nothing is wrong with the records themselves."""
    return UnavailableError(
        f"{what}: the metadata store refused: {cause}", details={"cause": cause}, code=METADATA_STORE_REFUSED
    )


class MetadataStore(Protocol):
    """Versioned records: strongly consistent reads, conditional writes, all-or-nothing groups of writes.

    Any call may raise UnavailableError, with METADATA_STORE_REFUSED if it was refused, and ItemRefusedError.
    """

    def get(self, key: Key) -> Record | None:
        """The record, strongly consistent; one read."""
        ...

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        """Up to 100 distinct keys in one batch read; answers in the order of `keys`.

        The answers are not a snapshot: other processes may write between the reads of the single records.
        """
        ...

    def query(
        self,
        partition: str,
        *,
        first: str = "",
        last: str | None = None,
        limit: int,
        descending: bool = False,
        bytes_max: int | None = None,
    ) -> Page:
        """Records with first <= sort <= last (no upper bound for None), at most `limit`, in sort order or its reverse.

        With `bytes_max` a page ends with the record with which its bodies hold so many bytes, as compact ASCII JSON.

        `next_after` of a page is the sort key of its last record when more may follow; continue ascending with
        `first=next_after + "\\0"`.
        """
        ...

    def write(self, *writes: Write) -> None:
        """All or nothing, on distinct keys, at most `WRITES_PER_TRANSACTION_MAX`.

        One write is a plain conditional write (one request); several are one transaction. Transient clashes between
        transactions are retried inside with jitter.

        Raises:
            WriteConflictError: a condition failed; nothing was written.
            ItemRefusedError: a key or body exceeds a limit (`ports.record_limits`); nothing was written.
            UnavailableError: the store does not answer, the outcome is unknown.
        """
        ...


# The limits of DynamoDB for keys and records. Every adapter checks them before a request, the one in memory too.
#
# So tests find a record that DynamoDB would refuse.

PARTITION_BYTES_MAX: Final = 2048
SORT_BYTES_MAX: Final = 1024

TRANSACTION_BYTES_MAX: Final = 3_800_000
"""DynamoDB's limit of 4 MB for all items of a transaction, less room for a hundred keys."""


def check_key(key: Key) -> None:
    """Reject a key that DynamoDB does not accept.

    Raises:
        ItemRefusedError: a part is empty, too long, or not valid Unicode text.
    """
    _check_key_part("partition", key.partition, PARTITION_BYTES_MAX, 1)
    _check_key_part("sort", key.sort, SORT_BYTES_MAX, 1)


def check_range(partition: str, first: str, last: str | None, limit: int) -> None:
    """Reject a query that DynamoDB does not accept.

    Raises:
        InvalidRequestError: the limit is less than 1.
        ItemRefusedError: as `check_key`, but bounds of the range may be empty.
    """
    if limit < 1:
        raise InvalidRequestError(f"a query needs a limit of at least 1, not {limit}")
    _check_key_part("partition", partition, PARTITION_BYTES_MAX, 1)
    _check_key_part("sort", first, SORT_BYTES_MAX, 0)
    _check_key_part("sort", last or "", SORT_BYTES_MAX, 0)


def body_text(write: Create | Replace) -> str:
    """The body as JSON in ASCII, so that its length in characters is its length in bytes.

    Raises:
        ItemRefusedError: the record would be too large.
    """
    text = json.dumps(dict(write.body), separators=(",", ":"), allow_nan=False)
    if len(text) > BODY_BYTES_MAX:
        raise ItemRefusedError(
            f"the record at {write.key} is larger than {BODY_BYTES_MAX} bytes",
            details={"length_bytes": len(text), "length_bytes_max": BODY_BYTES_MAX},
        )
    return text


def checked_texts(writes: Iterable[Write]) -> list[str | None]:
    """The `body_text` of each write of a transaction; None for a write without a body.

    Raises:
        ItemRefusedError: as `check_key` and `body_text`, or the bodies together are too large.
    """
    texts: list[str | None] = []
    for write in writes:
        check_key(write.key)
        texts.append(body_text(write) if isinstance(write, Create | Replace) else None)
    length_bytes = sum(len(text) for text in texts if text is not None)
    if length_bytes > TRANSACTION_BYTES_MAX:
        raise ItemRefusedError(
            f"the bodies of one transaction take at most {TRANSACTION_BYTES_MAX} bytes, not {length_bytes}",
            details={"length_bytes": length_bytes, "length_bytes_max": TRANSACTION_BYTES_MAX},
        )
    return texts


def _check_key_part(kind: str, text: str, bytes_max: int, bytes_min: int) -> None:
    try:
        length_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise ItemRefusedError(f"the {kind} key {text[:100]!r} is not valid Unicode text") from None
    if not bytes_min <= length_bytes <= bytes_max:
        raise ItemRefusedError(
            f"a {kind} key takes {bytes_min} to {bytes_max} bytes, {text[:100]!r} has {length_bytes}",
            details={"length_bytes": length_bytes, "length_bytes_max": bytes_max},
        )

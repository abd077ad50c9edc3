"""The limits of DynamoDB for keys and records. Every adapter checks them before a request, the one in memory too.

So tests find a record that DynamoDB would refuse.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from headrace.model.errors import InvalidRequestError
from headrace.ports.metadata_store import BODY_BYTES_MAX, Create, ItemRefusedError, Key, Replace, Write

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

"""Dead letters: messages that failed repeatedly, with the error and the state of the request.

There is one letter for one request, even if its message is sent again and fails again. The id of a letter begins with
the time of the first final failure, so that letters sort by time. It ends with the identity of the message, so that
equal messages have the same letter.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.model.requests import Requester

CAUSE_CHARACTERS_MAX = 1_000
MESSAGE_CHARACTERS_MAX = 16 * 1024
"""The length of the message text that a letter keeps. Messages of Headrace are far shorter; others may be cut."""

_LETTER_ID = re.compile(r"[0-9]{13}-[0-9a-f]{32}")


class DeadLetterStatus(StrEnum):
    """The state of the request.

    UNDONE: it was rolled back. STUCK: it cannot be rolled back, and is retried until it is done. DONE: it was stuck and
    has completed since. UNPROCESSED: only the message is known. REPLAYED: it was requested again.
    """

    UNDONE = "UNDONE"
    STUCK = "STUCK"
    DONE = "DONE"
    UNPROCESSED = "UNPROCESSED"
    REPLAYED = "REPLAYED"


@dataclass(frozen=True, slots=True)
class Cause:
    """The error of the last attempt: its code and its message."""

    code: str
    message: str


PROCESSOR_DIED = Cause(
    "processor_died", "the processor ended without an error (out of time or memory, or killed): see its log"
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The last delivery of a message by a queue. `group` is empty for a queue without groups."""

    queue: str
    group: str
    text: str
    first_try_ms: int
    tries: int
    requester: Requester | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The record of a request that failed. Times are milliseconds since the Unix epoch.

    `tries` counts the deliveries of all messages of the request. `kind`, `subject` and `request_id` are empty if the
    message does not name them. `parameters` are those of a request that was rolled back, for a replay. `intent` is the
    key (partition, sort) of the record that keeps a stuck request pending. `requester` is who asked for the request, if
    the message tells.
    """

    letter_id: str
    queue: str
    group: str
    message: str
    status: DeadLetterStatus
    cause: Cause
    first_try_ms: int
    last_try_ms: int
    tries: int
    kind: str = ""
    subject: str = ""
    request_id: str = ""
    replays: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    intent: tuple[str, str] | None = None
    requester: Requester | None = None

    @property
    def identity(self) -> str:
        return self.letter_id.rpartition("-")[2]

    @property
    def body(self) -> dict[str, Any] | None:
        """The message as a JSON object. None if it is not a JSON object, or if it was too long to be kept whole."""
        return _object(self.message)


def new_letter(delivery: Delivery, cause: Cause, now_ms: int) -> DeadLetter:
    """The letter of a message of which only the text is known."""
    body = _object(delivery.text) or {}
    return DeadLetter(
        letter_id=f"{max(0, now_ms):013d}-{identity_of(delivery.queue, delivery.text)}",
        queue=delivery.queue,
        group=delivery.group,
        message=delivery.text[:MESSAGE_CHARACTERS_MAX],
        status=DeadLetterStatus.UNPROCESSED,
        cause=cause,
        first_try_ms=delivery.first_try_ms,
        last_try_ms=now_ms,
        tries=delivery.tries,
        kind=_text(body, "kind"),
        subject="/".join(part for name in _RESOURCE_FIELDS if (part := _text(body, name))),
        request_id=_text(body, "request"),
        requester=delivery.requester,
    )


def died_again(known: DeadLetter, now: DeadLetter) -> DeadLetter:
    """The letter `known` of a request after another of its messages, with the letter `now`, has failed finally."""
    return replace(
        now,
        letter_id=known.letter_id,
        first_try_ms=known.first_try_ms,
        tries=known.tries + now.tries,
        replays=known.replays,
        # A replay is not a request of the operator who asks for it, and an old message tells nothing.
        requester=known.requester or now.requester,
    )


def replayed(letter: DeadLetter) -> DeadLetter:
    """The letter after a replay. The letter of a stuck request keeps its status until the request is done."""
    status = letter.status if letter.status is DeadLetterStatus.STUCK else DeadLetterStatus.REPLAYED
    return replace(letter, status=status, replays=letter.replays + 1)


def identity_of(queue: str, text: str) -> str:
    """The identity of a message: 32 hexadecimal digits, the same for all equal messages of a queue."""
    body = _object(text)
    canonical = text if body is None else json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{queue}\n{canonical}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def cause_of(error: BaseException) -> Cause:
    if isinstance(error, HeadraceError):
        return Cause(error.specific_code, error.message[:CAUSE_CHARACTERS_MAX])
    return Cause("internal", f"{type(error).__name__}: {error}"[:CAUSE_CHARACTERS_MAX])


def check_letter_id(text: str) -> str:
    """Returns `text`; raises InvalidRequestError if it cannot be the id of a letter."""
    if not _LETTER_ID.fullmatch(text):
        raise InvalidRequestError(
            f"{text[:100]!a} is not the id of a dead letter: expected 13 digits, a hyphen and 32 hexadecimal digits"
        )
    return text


_RESOURCE_FIELDS = ("scope", "stream", "reader-group", "key-value-table", "transaction", "segment", "bucket")
"""Fields of messages that name the resource of the request, from the outside in."""


def _object(text: str) -> dict[str, Any] | None:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name, "")
    return str(value)[:600] if isinstance(value, str | int) else ""

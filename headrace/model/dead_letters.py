"""Dead letters: messages that failed again and again, why, and what has become of what they asked for.

One letter stands for one request, however often its message is sent again and fails again. Its id begins with the time
of its first death and ends with the identity of the message, so that letters sort by time and twins meet.
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

CAUSE_CHARACTERS_MAX = 1_000
MESSAGE_CHARACTERS_MAX = 16 * 1024
"""Of a message's text as a letter keeps it: ours are far smaller, and what is not ours need not be kept whole."""

_LETTER_ID = re.compile(r"[0-9]{13}-[0-9a-f]{32}")


class DeadLetterStatus(StrEnum):
    """UNDONE: taken back, as if it had never been asked for. STUCK: cannot be taken back and is tried until it is done.
    DONE: was stuck, and is done since. UNPROCESSED: nothing is known but the message. REPLAYED: asked for anew."""

    UNDONE = "UNDONE"
    STUCK = "STUCK"
    DONE = "DONE"
    UNPROCESSED = "UNPROCESSED"
    REPLAYED = "REPLAYED"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why the last try failed: the code and the message of its error."""

    code: str
    message: str


PROCESSOR_DIED = Cause(
    "processor_died", "the processor ended without a word (out of time or memory, or killed): its log may tell more"
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as a queue gave it out for the last time. `group` is empty for a queue without groups."""

    queue: str
    group: str
    text: str
    first_try_ms: int
    tries: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Times are milliseconds since the Unix epoch, `tries` counts deliveries of all messages of the request.

    `kind`, `subject` and `request_id` are empty where the message tells none. `parameters` are those of an undone
    request, with which it can be asked for anew; `intent` is where the record lies that asks for what is stuck
    (partition, sort).
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

    @property
    def identity(self) -> str:
        return self.letter_id.rpartition("-")[2]

    @property
    def body(self) -> dict[str, Any] | None:
        """The message as the JSON object it is; None for any other text, or one too long to be kept."""
        return _object(self.message)


def new_letter(delivery: Delivery, cause: Cause, now_ms: int) -> DeadLetter:
    """The letter of a message of which nothing is known but its text."""
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
        subject="/".join(part for name in _SUBJECT_FIELDS if (part := _text(body, name))),
        request_id=_text(body, "request"),
    )


def died_again(known: DeadLetter, now: DeadLetter) -> DeadLetter:
    """The known letter of a request after one more message of it has failed for good, which alone would be `now`."""
    return replace(
        now,
        letter_id=known.letter_id,
        first_try_ms=known.first_try_ms,
        tries=known.tries + now.tries,
        replays=known.replays,
    )


def replayed(letter: DeadLetter) -> DeadLetter:
    """A stuck request stays stuck until it is done; any other letter has done its duty."""
    status = letter.status if letter.status is DeadLetterStatus.STUCK else DeadLetterStatus.REPLAYED
    return replace(letter, status=status, replays=letter.replays + 1)


def identity_of(queue: str, text: str) -> str:
    """The same for all messages that ask for the same: 32 hexadecimal digits."""
    body = _object(text)
    canonical = text if body is None else json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{queue}\n{canonical}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def cause_of(error: BaseException) -> Cause:
    if isinstance(error, HeadraceError):
        return Cause(error.specific_code, error.message[:CAUSE_CHARACTERS_MAX])
    return Cause("internal", f"{type(error).__name__}: {error}"[:CAUSE_CHARACTERS_MAX])


def check_letter_id(text: str) -> str:
    """Raises InvalidRequestError for what can be no id of a letter."""
    if not _LETTER_ID.fullmatch(text):
        raise InvalidRequestError(
            f"{text[:100]!a} is no dead letter's id: expected 13 digits, a hyphen and 32 hexadecimal digits"
        )
    return text


_SUBJECT_FIELDS = ("scope", "stream", "reader-group", "key-value-table", "transaction", "segment", "bucket")
"""Fields of messages that name what the request is about, from the outside in."""


def _object(text: str) -> dict[str, Any] | None:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name, "")
    return str(value)[:600] if isinstance(value, str | int) else ""

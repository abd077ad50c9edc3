"""A dead letter, in the one list that is sorted by time; and from a message's identity the way to its letter."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.dead_letters import Cause, DeadLetter, DeadLetterStatus

DEAD_LETTERS_PARTITION = "dead-letters"
POINTER_SORT = "letter"


def pointer_partition(identity: str) -> str:
    return f"dead-letter/{identity}"


def pointer_body(letter_id: str) -> dict[str, Any]:
    return versioned(letter=letter_id)


def letter_id_of_body(body: Body) -> str:
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
    )


def dead_letter_of_body(body: Body) -> DeadLetter:
    return decoded("dead letter", body, _dead_letter)


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
    )


def _intent(place: Any) -> tuple[str, str] | None:
    if place is None:
        return None
    partition, sort = place
    return str(partition), str(sort)

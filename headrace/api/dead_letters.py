"""Dead letters: requests whose last attempt failed. Times are milliseconds since the Unix epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.model.dead_letters import DeadLetter, DeadLetterStatus


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A request whose last attempt failed, and the error of that attempt.

    `status` is UNDONE (rolled back; the stream accepts other requests), STUCK (cannot be rolled back, retried until it
    is done), DONE (was stuck and has completed since), UNPROCESSED (no request is known for the message) or REPLAYED
    (sent again as a new request). `subject` names the resource of the request, such as "shop/orders".
    """

    letter: str
    queue: str
    kind: str
    subject: str
    status: DeadLetterStatus
    cause_code: str
    cause_message: str
    first_try_ms: int
    last_try_ms: int
    tries: int
    replays: int
    message: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, letter: DeadLetter) -> DeadLetterView:
        return cls(
            letter=letter.letter_id,
            queue=letter.queue,
            kind=letter.kind,
            subject=letter.subject,
            status=letter.status,
            cause_code=letter.cause.code,
            cause_message=letter.cause.message,
            first_try_ms=letter.first_try_ms,
            last_try_ms=letter.last_try_ms,
            tries=letter.tries,
            replays=letter.replays,
            message=letter.message,
            parameters=letter.parameters,
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DeadLetterView:
        return cls(
            letter=str(document["letter"]),
            queue=str(document["queue"]),
            kind=str(document["kind"]),
            subject=str(document["subject"]),
            status=DeadLetterStatus(document["status"]),
            cause_code=str(document["cause"]["code"]),
            cause_message=str(document["cause"]["message"]),
            first_try_ms=int(document["firstTry"]),
            last_try_ms=int(document["lastTry"]),
            tries=int(document["tries"]),
            replays=int(document["replays"]),
            message=str(document["message"]),
            parameters=dict(document["parameters"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "letter": self.letter,
            "queue": self.queue,
            "kind": self.kind,
            "subject": self.subject,
            "status": self.status.value,
            "cause": {"code": self.cause_code, "message": self.cause_message},
            "firstTry": self.first_try_ms,
            "lastTry": self.last_try_ms,
            "tries": self.tries,
            "replays": self.replays,
            "parameters": dict(self.parameters),
            "message": self.message,
        }

"""Dead letters: requests whose last attempt failed. Times are milliseconds since the Unix epoch."""

from __future__ import annotations

from typing import Annotated, Any

from headrace.api.pages import Page
from headrace.model.dead_letters import DeadLetter, DeadLetterStatus
from headrace.model.documents import Document, about


class DeadLetterCause(Document, frozen=True):
    """The error of the last attempt."""

    code: str
    message: str


class DeadLetterView(Document, frozen=True):
    """A request whose last attempt failed, and the error of that attempt.

    `status` is UNDONE (rolled back; the stream accepts other requests), STUCK (cannot be rolled back, retried until it
    is done), DONE (was stuck and has completed since), UNPROCESSED (no request is known for the message) or REPLAYED
    (sent again as a new request). `subject` names the resource of the request, such as "shop/orders".
    """

    letter: str
    queue: str
    kind: Annotated[str, about("Of the request; empty for a message that tells none")]
    subject: Annotated[str, about("What the request is about: names from the scope on, with slashes")]
    status: DeadLetterStatus
    cause: DeadLetterCause
    first_try_ms: Annotated[int, about("Milliseconds since 1970")]
    last_try_ms: Annotated[int, about("Milliseconds since 1970")]
    tries: int
    replays: int
    parameters: Annotated[dict[str, Any], about("Of a request that was undone")]
    message: Annotated[str, about("The message's text, cut if it is very long")]
    requested_by: Annotated[str | None, about("Who asked for the request; null if that is not known")] = None
    correlation_id: Annotated[str | None, about("Of the request, as log and audit lines have it")] = None

    @classmethod
    def of(cls, letter: DeadLetter) -> DeadLetterView:
        return cls(
            letter=letter.letter_id,
            queue=letter.queue,
            kind=letter.kind,
            subject=letter.subject,
            status=letter.status,
            cause=DeadLetterCause(letter.cause.code, letter.cause.message),
            first_try_ms=letter.first_try_ms,
            last_try_ms=letter.last_try_ms,
            tries=letter.tries,
            replays=letter.replays,
            parameters=dict(letter.parameters),
            message=letter.message,
            requested_by=letter.requester.principal if letter.requester else None,
            correlation_id=letter.requester.correlation_id if letter.requester else None,
        )

    @property
    def cause_code(self) -> str:
        return self.cause.code

    @property
    def cause_message(self) -> str:
        return self.cause.message


class DeadLetterList(Page, frozen=True, kw_only=True):
    letters: tuple[DeadLetterView, ...]

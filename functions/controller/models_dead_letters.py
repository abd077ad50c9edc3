"""JSON of the dead-letter routes, and the way to and from values."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import unquote

from aws_lambda_powertools.event_handler.openapi.params import Path
from pydantic import AfterValidator, Field

from functions.controller.parameters import WireModel
from headrace.api.pages import Listing
from headrace.model.dead_letters import DeadLetter as Letter
from headrace.model.dead_letters import check_letter_id

LetterId = Annotated[str, AfterValidator(lambda text: check_letter_id(unquote(text))), Path(description="Of a letter")]


class DeadLetterCause(WireModel):
    code: str
    message: str


class DeadLetter(WireModel):
    letter: str
    queue: str
    kind: str = Field(description="Of the request; empty for a message that tells none")
    subject: str = Field(description="What the request is about: names from the scope on, with slashes")
    status: Literal["UNDONE", "STUCK", "DONE", "UNPROCESSED", "REPLAYED"]
    cause: DeadLetterCause
    firstTry: int = Field(description="Milliseconds since 1970")
    lastTry: int = Field(description="Milliseconds since 1970")
    tries: int
    replays: int
    parameters: dict[str, Any] = Field(description="Of a request that was undone")
    message: str = Field(description="The message's text, cut if it is very long")


def dead_letter(letter: Letter) -> DeadLetter:
    return DeadLetter(
        letter=letter.letter_id,
        queue=letter.queue,
        kind=letter.kind,
        subject=letter.subject,
        status=letter.status.value,
        cause=DeadLetterCause(code=letter.cause.code, message=letter.cause.message),
        firstTry=letter.first_try_ms,
        lastTry=letter.last_try_ms,
        tries=letter.tries,
        replays=letter.replays,
        parameters=dict(letter.parameters),
        message=letter.message,
    )


class DeadLetterList(WireModel):
    letters: list[DeadLetter]
    continuationToken: str | None


def dead_letter_list(page: Listing[Letter]) -> DeadLetterList:
    return DeadLetterList(letters=[dead_letter(one) for one in page.items], continuationToken=page.next_after)

"""JSON of the dead-letter routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler.openapi.params import Path
from pydantic import AfterValidator, Field

from functions.controller.parameters import WireModel, path_value
from headrace.model.dead_letters import check_letter_id

LetterId = Annotated[
    str, AfterValidator(lambda text: check_letter_id(path_value(text))), Path(description="Of a letter")
]


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


class DeadLetterList(WireModel):
    letters: list[DeadLetter]
    continuationToken: str | None

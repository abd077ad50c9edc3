"""Dead letters over HTTP: list, inspect, replay, drop."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from functions import wiring
from functions.controller.parameters import PAGE_LIMIT_DEFAULT, ContinuationToken, PageLimit, path_name
from functions.http_api import HttpApi, lambda_handler
from headrace.api.dead_letters import DeadLetterList, DeadLetterView
from headrace.model.dead_letters import check_letter_id

api = HttpApi()

LetterId = Annotated[str, path_name("Of a letter", check_letter_id)]

_LETTERS = "/v1/dead-letters"
_LETTER = f"{_LETTERS}/<letter>"


@api.route("GET", _LETTERS, summary="List dead letters by time", tag="Dead letters")
def list_dead_letters(
    limit: PageLimit = PAGE_LIMIT_DEFAULT, continuation_token: ContinuationToken = None
) -> DeadLetterList:
    after = check_letter_id(continuation_token) if continuation_token else None
    page = wiring.dead_letter_service().list_letters(limit, after)
    return DeadLetterList(letters=tuple(map(DeadLetterView.of, page.items)), next_after=page.next_after)


@api.route("GET", _LETTER, summary="Get a dead letter", tag="Dead letters")
def get_dead_letter(letter: LetterId) -> DeadLetterView:
    return DeadLetterView.of(wiring.dead_letter_service().get_letter(letter))


@api.route(
    "POST",
    f"{_LETTER}/replay",
    summary="Ask again for what a dead letter is about",
    tag="Dead letters",
    status=HTTPStatus.ACCEPTED,
)
def replay_dead_letter(letter: LetterId) -> DeadLetterView:
    return DeadLetterView.of(wiring.dead_letter_service().replay_letter(letter))


@api.route("DELETE", _LETTER, summary="Forget a dead letter", tag="Dead letters", status=HTTPStatus.NO_CONTENT)
def drop_dead_letter(letter: LetterId) -> None:
    wiring.dead_letter_service().drop_letter(letter)


handler = lambda_handler(api)

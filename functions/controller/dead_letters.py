"""Dead letters over HTTP: list, inspect, replay, drop."""

from __future__ import annotations

from http import HTTPStatus

from functions import wiring
from functions.controller import models_dead_letters as models
from functions.controller.parameters import PAGE_LIMIT_DEFAULT, ContinuationToken, PageLimit
from functions.http_api import http_api, lambda_handler
from headrace.api.dead_letters import DeadLetterView
from headrace.model.dead_letters import check_letter_id

api = http_api()

_LETTERS = "/v1/dead-letters"
_LETTER = f"{_LETTERS}/<letter>"


@api.get(_LETTERS, summary="List dead letters by time", tags=["Dead letters"])
def list_dead_letters(
    limit: PageLimit = PAGE_LIMIT_DEFAULT, continuationToken: ContinuationToken = None
) -> models.DeadLetterList:
    after = check_letter_id(continuationToken) if continuationToken else None
    page = wiring.dead_letter_service().list_letters(limit, after)
    return models.DeadLetterList.model_validate(page.to_json("letters", lambda one: DeadLetterView.of(one).to_json()))


@api.get(_LETTER, summary="Get a dead letter", tags=["Dead letters"])
def get_dead_letter(letter: models.LetterId) -> models.DeadLetter:
    return models.DeadLetter.from_value(DeadLetterView.of(wiring.dead_letter_service().get_letter(letter)))


@api.post(
    f"{_LETTER}/replay",
    summary="Ask again for what a dead letter is about",
    tags=["Dead letters"],
    status_code=HTTPStatus.ACCEPTED,
)
def replay_dead_letter(letter: models.LetterId) -> models.DeadLetter:
    return models.DeadLetter.from_value(DeadLetterView.of(wiring.dead_letter_service().replay_letter(letter)))


@api.delete(_LETTER, summary="Forget a dead letter", tags=["Dead letters"], status_code=HTTPStatus.NO_CONTENT)
def drop_dead_letter(letter: models.LetterId) -> None:
    wiring.dead_letter_service().drop_letter(letter)


handler = lambda_handler(api)

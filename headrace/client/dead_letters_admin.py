"""Dead letters for operators: requests that failed again and again. `admin.dead_letters`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.http_api import HttpApi, parsed
from headrace.model.dead_letters import check_letter_id
from headrace.model.limits import PAGE_ITEMS_MAX

_LETTERS = "/v1/dead-letters"


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A request that failed for the last time, and why. Times are milliseconds since the Unix epoch.

    `status` is UNDONE (taken back; its stream is usable), STUCK (tried until it is done), DONE (was stuck), UNPROCESSED
    (a message of which nothing else is known) or REPLAYED (asked for anew).
    """

    letter: str
    queue: str
    kind: str
    subject: str
    status: str
    cause_code: str
    cause_message: str
    first_try_ms: int
    last_try_ms: int
    tries: int
    replays: int
    message: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Letters by time, and what to pass as `after` for the next page, None at the end."""

    letters: tuple[DeadLetterView, ...]
    next_after: str | None


class AsyncDeadLettersAdmin:
    """Lists, inspects, replays and drops dead letters."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def page(self, *, limit: int = PAGE_ITEMS_MAX, after: str | None = None) -> DeadLetterPage:
        """At most `limit` letters that follow the letter `after`, oldest first. There is no bound on how many exist."""
        query: dict[str, str | int] = {"limit": limit} | ({"continuationToken": after} if after else {})
        return parsed(_page, await self._api.request("GET", _LETTERS, query=query))

    async def get(self, letter: str) -> DeadLetterView:
        """Raises NotFoundError if there is no such letter."""
        return parsed(_letter, await self._api.request("GET", _path(letter)))

    async def replay(self, letter: str) -> DeadLetterView:
        """Asks again for what the letter is about; doing it twice does no harm.

        Raises:
            NotFoundError: there is no such letter, or what it is about is no more.
            IllegalStateError: code "not_replayable"; or the state of the stream forbids the request by now.
        """
        return parsed(_letter, await self._api.request("POST", f"{_path(letter)}/replay"))

    async def drop(self, letter: str) -> None:
        """Forgets the letter. Raises NotFoundError if there is no such letter."""
        await self._api.request("DELETE", _path(letter))


def _path(letter: str) -> str:
    return f"{_LETTERS}/{check_letter_id(letter)}"


def _page(answer: Mapping[str, Any]) -> DeadLetterPage:
    following = answer["continuationToken"]
    return DeadLetterPage(tuple(map(_letter, answer["letters"])), None if following is None else str(following))


def _letter(answer: Mapping[str, Any]) -> DeadLetterView:
    return DeadLetterView(
        letter=str(answer["letter"]),
        queue=str(answer["queue"]),
        kind=str(answer["kind"]),
        subject=str(answer["subject"]),
        status=str(answer["status"]),
        cause_code=str(answer["cause"]["code"]),
        cause_message=str(answer["cause"]["message"]),
        first_try_ms=int(answer["firstTry"]),
        last_try_ms=int(answer["lastTry"]),
        tries=int(answer["tries"]),
        replays=int(answer["replays"]),
        message=str(answer["message"]),
        parameters=dict(answer["parameters"]),
    )

"""Dead letters for operators: requests that failed again and again. `admin.dead_letters`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.api.dead_letters import DeadLetterView
from headrace.api.pages import Listing
from headrace.client.http_api import HttpApi, parsed
from headrace.model.dead_letters import check_letter_id
from headrace.model.limits import PAGE_ITEMS_MAX

_LETTERS = "/v1/dead-letters"


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
        return parsed(DeadLetterView.from_json, await self._api.request("GET", _path(letter)))

    async def replay(self, letter: str) -> DeadLetterView:
        """Asks again for what the letter is about; doing it twice does no harm.

        Raises:
            NotFoundError: there is no such letter, or what it is about is no more.
            IllegalStateError: code "not_replayable"; or the state of the stream forbids the request by now.
        """
        return parsed(DeadLetterView.from_json, await self._api.request("POST", f"{_path(letter)}/replay"))

    async def drop(self, letter: str) -> None:
        """Forgets the letter. Raises NotFoundError if there is no such letter."""
        await self._api.request("DELETE", _path(letter))


def _path(letter: str) -> str:
    return f"{_LETTERS}/{check_letter_id(letter)}"


def _page(answer: Mapping[str, Any]) -> DeadLetterPage:
    page = Listing.from_json(answer, "letters", DeadLetterView.from_json)
    return DeadLetterPage(page.items, page.next_after)

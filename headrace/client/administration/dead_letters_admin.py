"""Dead letters, for operators: requests whose last attempt failed. `admin.dead_letters`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.api.dead_letters import DeadLetterView
from headrace.api.pages import Listing
from headrace.client.http_api import HttpApi, parsed
from headrace.model.arguments import checked_calls
from headrace.model.dead_letters import check_letter_id
from headrace.model.limits import PAGE_ITEMS_MAX

_LETTERS = "/v1/dead-letters"


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """A page of letters, oldest first. Pass `next_after` as `after` to get the next page; the last page has None."""

    letters: tuple[DeadLetterView, ...]
    next_after: str | None


@checked_calls()
class AsyncDeadLettersAdmin:
    """Lists, inspects, replays and drops dead letters."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def page(self, *, limit: int = PAGE_ITEMS_MAX, after: str | None = None) -> DeadLetterPage:
        """Lists at most `limit` letters after the letter `after`, oldest first. The total number is not limited."""
        query: dict[str, str | int] = {"limit": limit} | ({"continuationToken": after} if after else {})
        return parsed(_page, await self._api.request("GET", _LETTERS, query=query))

    async def get(self, letter: str) -> DeadLetterView:
        """Returns a letter. Raises NotFoundError if there is no such letter."""
        return parsed(DeadLetterView.from_json, await self._api.request("GET", _path(letter)))

    async def replay(self, letter: str) -> DeadLetterView:
        """Sends the letter's request again; a repeat is harmless.

        Raises:
            NotFoundError: there is no such letter, or the resource of its request was deleted.
            IllegalStateError: code "not_replayable"; or the current state of the stream forbids the request.
        """
        return parsed(DeadLetterView.from_json, await self._api.request("POST", f"{_path(letter)}/replay"))

    async def drop(self, letter: str) -> None:
        """Deletes a letter. Raises NotFoundError if there is no such letter."""
        await self._api.request("DELETE", _path(letter))


def _path(letter: str) -> str:
    return f"{_LETTERS}/{check_letter_id(letter)}"


def _page(answer: Mapping[str, Any]) -> DeadLetterPage:
    page = Listing.from_json(answer, "letters", DeadLetterView.from_json)
    return DeadLetterPage(page.items, page.next_after)

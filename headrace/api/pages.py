"""Pages of a list in JSON: each has items and the token from which the next page continues."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.model.documents import Document, about

NextPage = Annotated[str | None, about("Where the next page continues; null on the last one")]


class Page(Document, frozen=True, kw_only=True):
    """The base class of pages in JSON, which add the array of their items."""

    next_after: NextPage = field(name="continuationToken")

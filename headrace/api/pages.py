"""Pages of a list: each has items and the token from which the next page continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from msgspec import field

from headrace.model.documents import Document, about

T = TypeVar("T")

NextPage = Annotated[str | None, about("Where the next page continues; null on the last one")]


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """One page. Pass `next_after` as `after` to get the next page. The last page has None."""

    items: tuple[T, ...]
    next_after: str | None

    @classmethod
    def from_json(cls, document: Mapping[str, Any], name: str, read: Callable[[Any], T]) -> Listing[T]:
        """Parses a page whose items are in the array `name`, each with `read`."""
        token = document.get("continuationToken")
        return cls(tuple(map(read, document[name])), None if token is None else str(token))


class Page(Document, frozen=True, kw_only=True):
    """The base class of pages in JSON, which add the array of their items."""

    next_after: NextPage = field(name="continuationToken")

"""A page of a list, as services return it and clients parse it. It needs no codec of documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


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

"""Pages of lists: the bounds of a page, and where the next one starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import PAGE_ITEMS_MAX

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """One page; `next_after` is what to pass as `after` for the next, None at the end."""

    items: tuple[T, ...]
    next_after: str | None


def check_page_limit(limit: int) -> int:
    """Raises InvalidRequestError unless 1 <= limit <= PAGE_ITEMS_MAX."""
    if not 1 <= limit <= PAGE_ITEMS_MAX:
        raise InvalidRequestError(
            f"a page has 1 to {PAGE_ITEMS_MAX} items, not {limit}", details={"limit": limit, "max": PAGE_ITEMS_MAX}
        )
    return limit


def first_after(after: str | None) -> str:
    """The smallest sort key that follows `after`; the very first without."""
    return "" if after is None else f"{after}\0"

"""Pages of lists: the bounds of a page, and where the next one starts."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import PAGE_BYTES_MAX, PAGE_ITEMS_MAX
from headrace.model.names import check_name_prefix

_AFTER_ALL_NAMES = "~"
"""Sorts after every character that a name may contain."""


@dataclass(slots=True)
class PageRoom:
    """The room that is left in a page that is filled from several queries."""

    left_bytes: int = PAGE_BYTES_MAX

    @property
    def is_full(self) -> bool:
        """Whether the page is full. A full page contains at least one item."""
        return self.left_bytes <= 0

    def take(self, length_bytes: int) -> None:
        self.left_bytes -= length_bytes


def check_page_limit(limit: int) -> int:
    """Raises InvalidRequestError unless 1 <= limit <= PAGE_ITEMS_MAX."""
    if not 1 <= limit <= PAGE_ITEMS_MAX:
        raise InvalidRequestError(
            f"a page has 1 to {PAGE_ITEMS_MAX} items, not {limit}", details={"limit": limit, "max": PAGE_ITEMS_MAX}
        )
    return limit


def names_with_prefix(prefix: str, after: str | None) -> tuple[str, str | None]:
    """The first and last sort key of names that start with `prefix` and come after `after`; None means no bound.

    Raises:
        InvalidRequestError: no valid name starts with `prefix`.
    """
    if not prefix:
        return first_after(after), None
    check_name_prefix("prefix", prefix)
    return max(prefix, first_after(after)), prefix + _AFTER_ALL_NAMES


def first_after(after: str | None) -> str:
    """The smallest sort key after `after`; the very first one if `after` is None."""
    return "" if after is None else f"{after}\0"

"""Pages of lists as Pravega's clients want them: each leads to another, until an empty one ends the list."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.api.pages import Listing
from headrace.bridge import controller_pb2 as pb

T = TypeVar("T")


def continuation(page: Listing[T], asked_after: str, name: Callable[[T], str]) -> pb.ContinuationToken:
    """Always there. Behind the last page it leads to an empty one, since that is what ends a client's listing."""
    last = name(page.items[-1]) if page.items else asked_after
    return pb.ContinuationToken(token=page.next_after or last)

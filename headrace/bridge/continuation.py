"""Pages of lists for Pravega's clients: each page has a token for the next one, and an empty page ends the list."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.api.pages import Listing
from headrace.bridge import controller_pb2 as pb

T = TypeVar("T")


def continuation(page: Listing[T], asked_after: str, name: Callable[[T], str]) -> pb.ContinuationToken:
    """The token of a page. The last page has one too: it leads to the empty page that ends a client's listing."""
    last = name(page.items[-1]) if page.items else asked_after
    return pb.ContinuationToken(token=page.next_after or last)

"""The ends of a stream in the client's words, and in those of the HTTP API."""

from __future__ import annotations

import warnings
from typing import Final, Literal

from headrace.codec.places import OLD_ENDS, End, old_end_notice

AnyEnd = End | Literal["head", "tail"]
"""An end of a stream. `head` and `tail` are the old words of `earliest` and `latest`."""

END_IN_QUERY: Final[dict[End, str]] = {"earliest": "head", "latest": "tail"}
"""The words that also the functions of earlier releases know."""


def current_end(word: AnyEnd) -> End:
    """The current word for an end. An old one gives a DeprecationWarning."""
    current = OLD_ENDS.get(word)
    if current is None:
        return "earliest" if word == "earliest" else "latest"
    warnings.warn(old_end_notice(word), DeprecationWarning, stacklevel=3)
    return current

"""Headers that the controller adds to its responses, by their names in lower case."""

from __future__ import annotations

from typing import Final

TOKENS: Final = "headrace-tokens"
"""Whether the segment stores want delegation tokens. So a client has one before its first request to a store."""

TOKENS_REQUIRED: Final = "required"

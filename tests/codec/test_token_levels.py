"""How the level MANAGE is written in a token."""

from __future__ import annotations

import base64
import json

import pytest

from headrace.codec.delegation_tokens import TokenClaims, TokenKey, encode_token
from headrace.model.access import Access
from headrace.model.errors import IllegalStateError

KEY = TokenKey("key", bytes(32))


def test_a_token_that_manages_names_a_level_of_pravega() -> None:
    token = encode_token(TokenClaims("", 0, 600, {"prn::/scope:s": Access.MANAGE}), KEY)
    body = json.loads(base64.b64decode(token.split(".")[1]))
    assert (body["prn::/scope:s"], body["manages"]) == ("READ_UPDATE", True)


def test_token_does_not_mix_the_levels_of_writers_and_managers() -> None:
    mixed = {"prn::/scope:s": Access.MANAGE, "prn::/scope:t": Access.READ_UPDATE}
    with pytest.raises(IllegalStateError, match="apart"):
        encode_token(TokenClaims("", 0, 600, mixed), KEY)

"""The controller signs tokens that segment stores accept for what was granted, until they end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec.delegation_tokens import TOKEN_BYTES_MAX, TokenKey, TokenKeys, verify_token
from headrace.controller.services.token_issue import NO_TOKEN_KEY, DelegationTokens, IssuedToken
from headrace.model.access import Access, allows, reader_group_resource, stream_resource, table_resource
from headrace.model.errors import CorruptError, UnavailableError

LIFE_S = 600
OLD = TokenKey("old", b"o" * 32)


class Keys:
    """A source with these keys, or with this error."""

    def __init__(self, *keys: TokenKey, error: Exception | None = None) -> None:
        self.now = TokenKeys(keys)
        self._error = error

    def keys(self) -> TokenKeys:
        if self._error is not None:
            raise self._error
        return self.now


def _clock(now_s: int = 1_800_000_000) -> ManualClock:
    clock = ManualClock()
    clock.advance(now_s * 1_000 - clock.now_ms())
    return clock


def test_a_token_says_what_was_granted_and_ends_in_time():
    keys, clock = Keys(OLD), _clock()
    issued = DelegationTokens(keys, clock, LIFE_S).issue("ann", {"prn::/scope:shop": Access.READ})
    claims = verify_token(issued.token, keys.now, clock.now_ms() / 1_000)
    assert (claims.subject, claims.grants) == ("ann", {"prn::/scope:shop": Access.READ})
    assert claims.expires_at_s * 1_000 == issued.expires_ms == clock.now_ms() + LIFE_S * 1_000


def test_without_keys_the_token_is_empty():
    issued = DelegationTokens(None, _clock(), LIFE_S).issue("ann", {"*": Access.ADMIN})
    assert issued == IssuedToken("", 0)


def test_the_newest_key_that_signs_already_signs():
    clock = _clock()
    now_s = clock.now_ms() // 1_000
    newer, waiting = TokenKey("newer", b"n" * 32, now_s - 1), TokenKey("waiting", b"w" * 32, now_s + 1)
    token = DelegationTokens(Keys(OLD, waiting, newer), clock, LIFE_S).issue("ann", {}).token
    assert verify_token(token, TokenKeys((newer,)), now_s)


@pytest.mark.parametrize(
    ("keys", "error", "code"),
    [
        (Keys(TokenKey("ended", b"e" * 32, 0, 1)), UnavailableError, NO_TOKEN_KEY),
        (Keys(error=UnavailableError("no answer")), UnavailableError, "unavailable"),
        (Keys(error=CorruptError("no keys")), CorruptError, "corrupt"),
    ],
)
def test_nothing_is_issued_without_a_key(keys: Keys, error: type[UnavailableError], code: str):
    with pytest.raises(error) as raised:
        DelegationTokens(keys, _clock(), LIFE_S).issue("ann", {})
    assert raised.value.specific_code == code


def test_a_group_token_covers_the_state_of_the_group():
    grants = {reader_group_resource("shop", "billing"): Access.READ_UPDATE}
    assert allows(grants, "shop/_RGbilling/0.#epoch.0", Access.READ_UPDATE)
    assert not allows(grants, "shop/_RGbilling2/0.#epoch.0", Access.READ)
    assert not allows(grants, "shop/billing/0.#epoch.0", Access.READ)


def test_a_token_does_not_show_in_logs():
    issued = DelegationTokens(Keys(OLD), _clock(), LIFE_S).issue("ann", {})
    assert issued.token not in repr(issued)


NAMES = st.text("abcXYZ019.-", min_size=1, max_size=255)


@given(scope=NAMES, name=NAMES, subject=st.text(max_size=300))
def test_longest_names_fit_into_a_token(scope: str, name: str, subject: str):
    grants = {stream_resource(scope, name): Access.READ_UPDATE, table_resource(scope, name): Access.READ_UPDATE}
    issued = DelegationTokens(Keys(OLD), _clock(), LIFE_S).issue(subject, grants)
    assert len(issued.token) <= TOKEN_BYTES_MAX
    assert IssuedToken.from_json(issued.to_json()) == issued


def test_a_long_arn_and_the_longest_names_fit():
    key = TokenKey("2026-11-22-abcdef", b"o" * 32)
    scope, name = "s" * 255, "n" * 255
    grants = {stream_resource(scope, name): Access.READ_UPDATE, table_resource(scope, name): Access.READ_UPDATE}
    token = DelegationTokens(Keys(key), _clock(), LIFE_S).issue("a" * 2_048, grants).token
    assert len(token) <= TOKEN_BYTES_MAX

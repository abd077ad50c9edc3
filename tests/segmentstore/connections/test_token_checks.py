"""Verified tokens and holds of a store, and the gate of one connection."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from any_commands import any_command
from hypothesis import given
from hypothesis import strategies as st
from token_clients import KEY, KEYS, LIFE_S, SECRET, STREAM, has_token

from headrace import wire
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec.delegation_tokens import CLOCK_SKEW_S, TokenClaims, TokenKey, TokenKeys, encode_token
from headrace.model.access import Access
from headrace.model.errors import UnauthorizedError
from headrace.segmentstore.connections import token_checks
from headrace.segmentstore.connections.token_checks import TokenChecks, TokenGate
from headrace.segmentstore.metrics import StoreMetrics


class Replies:
    peer = "peer"

    def __init__(self) -> None:
        self.sent: list[wire.WireCommand] = []
        self.closed = False

    def send(self, command: wire.WireCommand) -> None:
        self.sent.append(command)

    def close(self) -> None:
        self.closed = True


def checks_with(keys: TokenKeys = KEYS) -> tuple[TokenChecks, ManualClock]:
    clock = ManualClock()
    return TokenChecks(clock, StoreMetrics(), keys), clock


def token(clock: ManualClock, subject: str = "me", key: TokenKey = KEY, life_s: int = LIFE_S) -> str:
    now_s = clock.now_ms() // 1_000
    return encode_token(TokenClaims(subject, now_s, now_s + life_s, {STREAM: Access.READ_UPDATE}), key)


@given(
    any_command(text=st.text(max_size=20) | st.just("a.b.c"))
    | st.sampled_from([wire.Hello(21, 5), wire.KeepAlive(), wire.Padding(b"x")])
)
def test_only_greetings_pass_without_a_token(command: Any) -> None:
    checks, _ = checks_with()
    replies = Replies()
    gate = TokenGate(checks, replies)
    if has_token(type(command)):
        assert not gate.admits(command)
        (reply,) = replies.sent
        assert isinstance(reply, wire.AuthTokenCheckFailed)
        assert reply.request_id == command.request_id
    elif isinstance(command, wire.Hello | wire.KeepAlive | wire.Padding):
        assert gate.admits(command)
    else:
        with pytest.raises(wire.WireFormatError, match="not a request"):
            gate.admits(command)
    assert not gate.has_admitted


def test_number_of_verified_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_checks, "TOKENS_VERIFIED_MAX", 3)
    checks, clock = checks_with()
    tokens = [token(clock, str(number)) for number in range(5)]
    for text in tokens[:3]:
        checks.claims(text)
    checks.claims(tokens[0])
    checks.claims(tokens[3])
    assert list(checks._verified) == [tokens[2], tokens[0], tokens[3]], "the longest unused one was dropped"
    for number in range(100):
        with pytest.raises(UnauthorizedError):
            checks.claims(f"a.b.{number}")
    assert checks.verified_count == 3, "refused tokens take no memory"
    clock.advance((LIFE_S + CLOCK_SKEW_S) * 1_000)
    for text in tokens:
        with pytest.raises(UnauthorizedError):
            checks.claims(text)
    assert checks.verified_count == 0


def test_token_ends_with_its_key() -> None:
    checks, clock = checks_with()
    until_s = clock.now_ms() // 1_000 + 100
    checks.use(TokenKeys((TokenKey(KEY.key_id, SECRET, 0, until_s),)))
    gate = TokenGate(checks, Replies())
    ask = wire.GetStreamSegmentInfo(1, "shop/orders/0", token(clock))
    ended: list[int] = []
    checks.hold(ask.delegation_token, lambda: ended.append(1))
    clock.advance(99_999)
    checks.end_holds()
    assert gate.admits(ask)
    assert not ended
    clock.advance(1)
    checks.end_holds()
    assert not gate.admits(ask)
    assert ended == [1]


def test_hold_of_a_token_at_its_end_ends_at_once() -> None:
    checks, clock = checks_with()
    ended: list[int] = []
    checks.hold(token(clock, life_s=-1_000), lambda: ended.append(1))
    checks.end_holds()
    assert ended == [1]
    assert checks.hold_count == 0


def test_key_with_another_secret_is_another_key() -> None:
    checks, clock = checks_with()
    known = token(clock)
    checks.claims(known)
    ended: list[int] = []
    checks.hold(known, lambda: ended.append(1))
    checks.use(TokenKeys((TokenKey(KEY.key_id, SECRET[::-1]),)))
    checks.end_holds()
    assert ended == [1]
    with pytest.raises(UnauthorizedError, match="signature"):
        checks.claims(known)


def test_same_keys_change_nothing() -> None:
    checks, clock = checks_with()
    checks.claims(token(clock))
    checks.use(TokenKeys(KEYS.keys))
    assert (checks.generation, checks.verified_count) == (0, 1)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["hold", "hold", "release", "advance", "end", "revoke"]),
            st.integers(0, 5),
            st.integers(1, 400),
        ),
        max_size=40,
    )
)
def test_each_hold_ends_once_or_is_released(steps: list[tuple[str, int, int]]) -> None:
    second = TokenKey("second", SECRET)
    checks, clock = checks_with(TokenKeys((KEY, second)))
    made: dict[int, Any] = {}
    until_s: dict[int, float] = {}
    ended: list[int] = []
    key = second
    for kind, slot, amount in steps:
        if kind == "hold" and slot not in made:
            key_now = key if slot % 2 else KEY
            life_s = amount
            made[slot] = checks.hold(token(clock, key=key_now, life_s=life_s), partial(ended.append, slot))
            until_s[slot] = clock.now_ms() // 1_000 + life_s + CLOCK_SKEW_S
        elif kind == "release" and slot in made and slot not in ended:
            checks.release(made[slot])
            del until_s[slot]
            made[slot] = None
            ended.append(slot)
        elif kind == "advance":
            clock.advance(amount * 1_000)
        elif kind == "revoke" and key is second:
            key = KEY
            checks.use(KEYS)
            for other in until_s:
                if other % 2:
                    until_s[other] = min(until_s[other], clock.now_ms() / 1_000)
        elif kind == "end":
            checks.end_holds()
            now_s = clock.now_ms() / 1_000
            assert all((slot in ended) == (end <= now_s) for slot, end in until_s.items())
    assert len(ended) == len(set(ended))
    assert checks.hold_count == len(made) - len(ended)

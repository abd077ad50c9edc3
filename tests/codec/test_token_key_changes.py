"""Whatever is rotated and revoked, some key signs at each time, and a token stays valid unless its key is revoked."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.codec.delegation_tokens import (
    CLOCK_SKEW_S,
    KEYS_MAX,
    NO_KEYS_TEXT,
    SIGNS_AFTER_S,
    TokenKey,
    TokenKeys,
    follows,
    key_states,
    new_key_id,
    parse_token_keys,
    stored_keys,
    token_keys_text,
    with_new_key,
    without_key,
)
from headrace.model.errors import CorruptError, IllegalStateError, NotFoundError

LIFE_S = 600
NOW_S = 1_800_000_000
SECRET = b"s" * 32
STALE_S = 300
"""A process that issues tokens may still sign for so long with keys that it read before a change."""


def _rotate(keys: TokenKeys | None, number: int, now_s: float) -> TokenKeys:
    return with_new_key(keys, f"key-{number}", SECRET, now_s, LIFE_S)


def _revoke(keys: TokenKeys, key_id: str, number: int, now_s: float) -> TokenKeys:
    return without_key(keys, key_id, f"key-{number}", SECRET, now_s)


CHANGES = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, KEYS_MAX * 2)), max_size=30)


@settings(max_examples=300)
@given(CHANGES)
def test_some_key_signs_at_each_time_to_come(changes: list[tuple[int, int]]):
    now_s, keys = NOW_S, _rotate(None, 0, NOW_S)
    for number, (later_s, choice) in enumerate(changes, 1):
        now_s += later_s
        if choice < len(keys.keys):
            keys = _revoke(keys, keys.keys[choice].key_id, number, now_s)
        elif sum(key.verifies(now_s) for key in keys.keys) < KEYS_MAX:
            keys = _rotate(keys, number, now_s)
        assert parse_token_keys(token_keys_text(keys)) == keys
        ends = {end for key in keys.keys for end in (key.signs_from_s, key.verifies_until_s) if end is not None}
        for time_s in {now_s, now_s + 10**9, *(max(now_s, end + by) for end in ends for by in (-1, 0, 1))}:
            signing = keys.signing_key(time_s)
            assert signing.verifies(time_s)
            assert signing.signs_from_s <= time_s


@settings(max_examples=300)
@given(CHANGES)
def test_rotations_end_no_token_early(changes: list[tuple[int, int]]):
    now_s, versions = NOW_S, [(NOW_S, _rotate(None, 0, NOW_S))]
    for number, (later_s, _) in enumerate(changes, 1):
        now_s += later_s
        keys = versions[-1][1]
        if sum(key.verifies(now_s) for key in keys.keys) < KEYS_MAX:
            versions.append((now_s, _rotate(keys, number, now_s)))
    ends = [begin for begin, _ in versions[1:]] + [now_s + 10**6]
    # A process may have the keys of a version from its begin until some minutes after its end.
    in_use = [(begin, end + STALE_S, keys) for (begin, keys), end in zip(versions, ends, strict=True)]
    for begin, end, issuing in in_use:
        starts = {key.signs_from_s - 1 for key in issuing.keys} | {begin, end - 1}
        for issued_s in (each for each in starts if begin <= each < end):
            key_id = issuing.signing_key(issued_s).key_id
            for used_s in (issued_s, issued_s + LIFE_S + CLOCK_SKEW_S - 1):
                for first, last, verifying in in_use:
                    assert not first <= used_s < last or verifying.verifying_key(key_id, used_s)


def test_a_new_key_signs_when_every_process_has_read_it():
    keys = _rotate(_rotate(None, 1, NOW_S), 2, NOW_S + 5)
    assert keys.signing_key(NOW_S + 5 + SIGNS_AFTER_S - 1).key_id == "key-1"
    assert keys.signing_key(NOW_S + 5 + SIGNS_AFTER_S).key_id == "key-2"


def test_too_many_keys_are_refused_and_stay_readable():
    keys = _rotate(None, 0, NOW_S)
    for number in range(1, KEYS_MAX):
        keys = _rotate(keys, number, NOW_S)
    with pytest.raises(IllegalStateError, match="wait until some are at their end"):
        _rotate(keys, KEYS_MAX, NOW_S)
    assert len(_rotate(keys, KEYS_MAX, NOW_S + 10_000).keys) == 2


def test_the_last_key_is_replaced_by_one_that_signs_at_once():
    keys = _revoke(_rotate(None, 1, NOW_S), "key-1", 2, NOW_S + 5)
    assert [key.key_id for key in keys.keys] == ["key-2"]
    assert keys.signing_key(NOW_S + 5).key_id == "key-2"


def test_a_waiting_key_signs_at_once_when_the_other_is_revoked():
    keys = _revoke(_rotate(_rotate(None, 1, NOW_S), 2, NOW_S), "key-1", 3, NOW_S + 60)
    assert [key.key_id for key in keys.keys] == ["key-2"]
    assert keys.signing_key(NOW_S + 60).key_id == "key-2"


def test_a_key_that_still_signs_bridges_the_time():
    keys = _revoke(_rotate(_rotate(None, 1, NOW_S), 2, NOW_S), "key-2", 3, NOW_S + 60)
    assert [key.key_id for key in keys.keys] == ["key-1", "key-3"]
    assert keys.signing_key(NOW_S + 60).key_id == "key-3"


@pytest.mark.parametrize("keys", [None, TokenKeys((TokenKey("key-1", SECRET),))])
def test_an_unknown_key_cannot_be_revoked(keys: TokenKeys | None):
    with pytest.raises(NotFoundError, match="no token key 'key-9'"):
        without_key(keys, "key-9", "key-10", SECRET, NOW_S)


def test_short_secrets_are_refused():
    with pytest.raises(ValueError, match="too short"):
        with_new_key(None, "key", b"s" * 31, NOW_S, LIFE_S)


def test_states_tell_what_a_key_does_and_no_secret():
    keys = _rotate(_rotate(_rotate(None, 1, NOW_S), 2, NOW_S), 3, NOW_S + 2_000)
    states = key_states(keys, NOW_S + 2_000)
    assert [state.key_id for state in states] == ["key-1", "key-2", "key-3"]
    assert [state.state for state in states] == ["verifies", "signs", "waits"]
    assert key_states(keys, NOW_S + 10_000)[0].state == "ended"
    shown = json.dumps([state.to_json() for state in states]) + repr(states)
    assert SECRET.hex() not in shown
    assert str(SECRET) not in shown
    assert key_states(None, NOW_S) == []


@pytest.mark.parametrize("text", [NO_KEYS_TEXT, '{"keys": [], "placeholder": "x"}'])
def test_a_new_secret_has_no_keys(text: str):
    assert stored_keys(text) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": {}}', '{"keys": [{}]}', '{"keys": null}', "x"])
def test_other_texts_are_not_taken_for_an_empty_secret(text: str):
    with pytest.raises(CorruptError):
        stored_keys(text)


def test_only_one_new_key_follows():
    first, second = _rotate(None, 1, NOW_S), _rotate(_rotate(None, 1, NOW_S), 2, NOW_S)
    assert follows(first, None, NOW_S)
    assert follows(second, first, NOW_S)
    assert not follows(second, None, NOW_S), "a key was revoked"
    assert not follows(first, first, NOW_S)
    assert not follows(_rotate(first, 3, NOW_S), second, NOW_S), "a key was added"
    assert follows(_rotate(second, 3, NOW_S + 10_000), second, NOW_S + 10_000), "a key has ended"
    assert not follows(second, first, NOW_S + 1_000), "the new key would sign too early"
    assert follows(first, None, NOW_S + 1_000), "nothing signs yet"


def test_ids_of_keys_have_the_day():
    assert new_key_id(1_795_000_000, "0a1b2c") == "2026-11-18-0a1b2c"

"""JSON as every reader understands it."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.strict_json import NESTING_MAX, RefusedJsonError, has_half_pairs, parse_json, text_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(VALUES)
def test_what_was_dumped_is_parsed(value: Any):
    for is_ascii in (False, True):
        text = json.dumps(value, ensure_ascii=is_ascii)
        assert parse_json(text_of(text.encode())) == value
        assert not has_half_pairs(text, value)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (b"", "it is empty"),
        (b" \t", "it is empty"),
        (b"{", "not JSON"),
        (b"'a'", "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"a":NaN}', "NaN is not a number"),
        (b"[-Infinity]", "-Infinity is not a number"),
        (b"\xed\xa0\x80", "not UTF-8"),
        ("{}".encode("utf-16"), "not UTF-8"),
        ("{}".encode("utf-16-le"), "not JSON"),
        (b'{"a":1,"a":2}', "occurs twice"),
        (b"9" * 5_000, "too many digits"),
        (b"[" * 100_000, f"nested more than {NESTING_MAX} deep"),
        (b'["\\"]", ' + b"[" * NESTING_MAX + b"]" * NESTING_MAX + b"]", "nested more"),
    ],
)
def test_other_text_is_refused_with_a_reason(event: bytes, reason: str):
    with pytest.raises(RefusedJsonError, match=reason):
        parse_json(text_of(event))


def test_brackets_in_strings_are_no_depth():
    deepest = "[" * (NESTING_MAX - 1) + json.dumps('\\[[[{{{"[' * 200) + "]" * (NESTING_MAX - 1)
    assert parse_json(deepest) is not None
    assert parse_json(json.dumps([[]] * 1_000)) == [[]] * 1_000


def test_exact_numbers_keep_their_digits():
    assert parse_json("0.10", exact_numbers=True) == Decimal("0.10")
    assert str(parse_json("0.10", exact_numbers=True)) == "0.10"
    assert parse_json("1e9999999999999999999999", exact_numbers=True) == Decimal("Infinity")
    assert math.isinf(parse_json("1e400"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'"\ud800"', True),
        (r'{"\uDFFF":1}', True),
        (r'[["\udc00\ud800"]]', True),
        (r'"\ud83d\ude00"', False),
        (r'"\\ud800"', False),
        (r'"\ud7ff"', False),
    ],
)
def test_half_of_a_surrogate_pair_is_found(text: str, expected: bool):
    assert has_half_pairs(text, parse_json(text)) is expected

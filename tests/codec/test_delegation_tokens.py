"""Delegation tokens against a second implementation of JSON Web Tokens, and against everything that is none."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import re
from random import Random
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.codec.delegation_tokens import (
    CLOCK_SKEW_S,
    KEYS_MAX,
    SIGNS_AFTER_S,
    TOKEN_BYTES_MAX,
    TOKEN_EXPIRED,
    TOKEN_INVALID,
    TokenClaims,
    TokenKey,
    TokenKeys,
    encode_token,
    parse_token_keys,
    token_keys_text,
    verify_token,
)
from headrace.model.access import Access, scope_resource, stream_resource
from headrace.model.errors import CorruptError, IllegalStateError, UnauthorizedError

NOW_S = 1_763_800_000
SECRET = b"0123456789abcdef0123456789abcdef"
KEY = TokenKey("2025-11-22-1", SECRET)
KEYS = TokenKeys((KEY,))
CLAIMS = TokenClaims("arn:aws:sts::1:app/i-1", NOW_S, NOW_S + 600, {stream_resource("shop", "orders"): Access.READ})

RESOURCES = st.just("*") | st.text(max_size=30).map(lambda name: f"prn::{name}")
GRANTS = st.one_of(
    st.dictionaries(RESOURCES, st.sampled_from([level for level in Access if level is not left_out]), max_size=5)
    for left_out in (Access.READ_UPDATE, Access.MANAGE)
)
"""A token has no grants of both levels."""
TIMES = st.integers(0, 2**53)


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def sign(header: bytes, body: bytes, secret: bytes = SECRET) -> str:
    """RFC 7515, section 5.1, with HMAC-SHA-256."""
    signed = f"{encode(header)}.{encode(body)}"
    return f"{signed}.{encode(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def signed_body(body: str, header: str = '{"alg":"HS256","kid":"2025-11-22-1"}') -> str:
    return sign(header.encode(), body.encode())


def refusal(token: str, keys: TokenKeys = KEYS, now_s: float = NOW_S) -> str:
    """The code with which a token is refused."""
    with pytest.raises(UnauthorizedError) as caught:
        verify_token(token, keys, now_s)
    return caught.value.specific_code


def test_example_of_the_rfc_is_signed_the_same() -> None:
    """RFC 7515, appendix A.1."""
    secret = base64.urlsafe_b64decode(
        "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow=="
    )
    body = b'{"iss":"joe",\r\n "exp":1300819380,\r\n "http://example.com/is_root":true}'
    assert sign(b'{"typ":"JWT",\r\n "alg":"HS256"}', body, secret) == (
        "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9"
        ".eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
        ".dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    )


def test_token_is_a_signed_json_web_token() -> None:
    token = encode_token(CLAIMS, KEY)
    header, body, _ = token.split(".")
    found_header, found_body = (base64.urlsafe_b64decode(part + "==") for part in (header, body))
    assert sign(found_header, found_body) == token
    assert json.loads(found_header) == {"alg": "HS256", "typ": "JWT", "kid": "2025-11-22-1"}
    assert json.loads(found_body) == {
        "sub": "arn:aws:sts::1:app/i-1",
        "aud": "segmentstore",
        "iat": NOW_S,
        "exp": NOW_S + 600,
        "prn::/scope:shop/stream:orders": "READ",
    }


def random_claims(random: Random) -> TokenClaims:
    """Names with all characters that names of any part of the system may have, and with some that they may not."""
    text = "".join(random.choices('abcXYZ0189-_./:@+=, "\\\x7f>?~üЖ漢\U0001f600', k=random.randrange(30)))
    name = "".join(random.choices("abz09-_", k=random.randrange(1, 9)))
    resources = ["*", scope_resource(name), stream_resource(name, "orders"), stream_resource("shop", name)]
    levels = (Access.READ, random.choice((Access.READ_UPDATE, Access.MANAGE)), Access.ADMIN)
    grants = {each: random.choice(levels) for each in random.sample(resources, random.randrange(len(resources)))}
    issued_s = random.randrange(2**33)
    return TokenClaims(text, issued_s, issued_s + random.randrange(4_000), grants)


def test_a8_pyjwt_agrees_on_ten_thousand_tokens() -> None:
    """In both directions. Pravega's clients decode the body with the other alphabet of base64."""
    random, options = Random(8), {"verify_exp": False, "verify_iat": False}
    for _ in range(10_000):
        claims = random_claims(random)
        token = encode_token(claims, KEY)
        read = jwt.decode(token, SECRET, algorithms=["HS256"], audience="segmentstore", options=options)
        named = (read.pop("sub"), read.pop("aud"), read.pop("iat"), read.pop("exp"))
        assert named == (claims.subject, "segmentstore", claims.issued_at_s, claims.expires_at_s)
        assert read.keys() - {"manages"} == claims.grants.keys()
        assert not set("-_") & set(token.split(".")[1])
        body = jwt.decode(token, options={"verify_signature": False})
        made = jwt.encode(body, SECRET, algorithm="HS256", headers={"kid": KEY.key_id})
        assert verify_token(made, KEYS, NOW_S) == claims


@pytest.mark.filterwarnings("ignore:The HMAC key")
def test_a8_tokens_of_another_algorithm_are_refused() -> None:
    """Also if they are signed with the key of the deployment."""
    body = {"aud": "segmentstore", "iat": NOW_S, "exp": NOW_S + 9, "*": "ADMIN"}
    private = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    for algorithm, key in (("none", None), ("HS384", SECRET), ("HS512", SECRET), ("RS256", private)):
        token = jwt.encode(body, key, algorithm=algorithm, headers={"kid": KEY.key_id})
        assert refusal(token) == TOKEN_INVALID
    assert verify_token(jwt.encode(body, SECRET, headers={"kid": KEY.key_id}), KEYS, NOW_S).grants["*"] is Access.ADMIN


@pytest.mark.parametrize("repeated", ['"aud":"segmentstore"', '"exp":2', '"iat":1', '"*":"READ"'])
def test_a8_a_repeated_claim_is_refused(repeated: str) -> None:
    """Two readers of a token must not see two tokens."""
    body = '"aud":"segmentstore","iat":1,"exp":2,"*":"READ"'
    verify_token(signed_body(f"{{{body}}}"), KEYS, NOW_S)
    assert refusal(signed_body(f"{{{body},{repeated}}}")) == TOKEN_INVALID


@pytest.mark.parametrize("text", ["+", "/", "=", "%2B", "\n", " ", "ü"])
def test_a8_another_alphabet_is_refused(text: str) -> None:
    header, body, signature = encode_token(CLAIMS, KEY).split(".")
    for parts in ((header + text, body, signature), (header, body + text, signature), (header, body, signature + text)):
        assert refusal(".".join(parts)) == TOKEN_INVALID


@given(st.text(max_size=60), GRANTS, TIMES, TIMES)
def test_any_claims_come_back(subject: str, grants: dict[str, Access], issued_s: int, expires_s: int) -> None:
    claims = TokenClaims(subject, issued_s, expires_s, grants)
    try:
        token = encode_token(claims, KEY)
    except IllegalStateError as error:
        assume("bytes are" not in error.message and "allowed" not in error.message)
        raise
    verified = verify_token(token, KEYS, NOW_S)
    assert verified == claims
    assert verified.key_id == KEY.key_id
    body = token.split(".")[1]
    assert not set(body) & set("-_=")
    assert len(body) % 4 == 0, "the body is padded to a multiple of three bytes"
    assert base64.b64decode(body, validate=True) == base64.urlsafe_b64decode(body)
    # How clients find the end of a token.
    assert re.findall(r'"exp":\s?(\d+)', base64.b64decode(body).decode()) == [str(expires_s)]


@given(st.data())
def test_any_changed_character_is_refused(data: st.DataObject) -> None:
    token = encode_token(CLAIMS, KEY)
    position = data.draw(st.integers(0, len(token) - 1))
    removed = data.draw(st.integers(0, 2))
    other = data.draw(st.sampled_from("Aa0-_.=!\n é") | st.characters() | st.just(""))
    changed = token[:position] + other + token[position + removed :]
    assume(changed != token)
    refusal(changed)


def test_every_last_character_but_one_is_refused() -> None:
    """Two bits of it are not part of the signature, so that four characters are read as the same bytes."""
    token = encode_token(CLAIMS, KEY)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for character in set(alphabet) - {token[-1]}:
        assert refusal(token[:-1] + character) == TOKEN_INVALID
    for suffix in ("=", "\n", "!", " ", "A"):
        assert refusal(token + suffix) == TOKEN_INVALID


@given(st.text(max_size=200) | st.lists(st.text(max_size=50), min_size=3, max_size=3).map(".".join))
def test_any_text_is_refused(text: str) -> None:
    refusal(text)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_signed_bytes_are_refused(header: bytes, body: bytes) -> None:
    refusal(sign(header, body))
    refusal(sign(b'{"alg":"HS256","kid":"2025-11-22-1"}', body))


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


RIGHT = {"sub": "someone", "aud": "segmentstore", "iat": NOW_S, "exp": NOW_S + 600, "*": "READ"}


@given(st.dictionaries(st.sampled_from([*RIGHT, "prn::/scope:s", "other"]), JSON | st.integers(0), max_size=3))
def test_any_signed_object_is_taken_or_refused(changed: dict[str, Any]) -> None:
    try:
        claims = verify_token(signed_body(json.dumps(RIGHT | changed)), KEYS, NOW_S)
    except UnauthorizedError:
        return
    assert type(claims.expires_at_s) is type(claims.issued_at_s) is int
    claims.has_expired(NOW_S)


@pytest.mark.parametrize(
    "times",
    [
        '"iat":1,"exp":2.0',
        '"iat":1,"exp":NaN',
        '"iat":1,"exp":Infinity',
        '"iat":1,"exp":1e400',
        '"iat":1,"exp":true',
        '"iat":false,"exp":2',
        '"iat":1,"exp":"2"',
        '"iat":1,"exp":null',
        '"iat":1',
        '"exp":2',
        '"iat":1,"exp":2,"exp":9',
        '"iat":1,"exp":' + "9" * 1_000 + ',"exp":1',
    ],
)
def test_times_must_be_whole_numbers(times: str) -> None:
    assert refusal(signed_body(f'{{"aud":"segmentstore","*":"READ",{times}}}')) == TOKEN_INVALID


def test_huge_time_is_a_number() -> None:
    claims = verify_token(signed_body('{"aud":"segmentstore","iat":1,"exp":' + "9" * 1_000 + "}"), KEYS, NOW_S)
    assert not claims.has_expired(1e300)
    past = verify_token(signed_body('{"aud":"segmentstore","iat":1,"exp":-' + "9" * 1_000 + "}"), KEYS, NOW_S)
    assert past.has_expired(0)


@pytest.mark.parametrize(
    "body",
    [
        "[" * 1_400,
        '{"a":' * 250,
        '{"aud":"segmentstore","iat":1,"exp":2,"*":"OWNER"}',
        '{"aud":"segmentstore","iat":1,"exp":2,"*":3}',
        '{"aud":"segmentstore","iat":1,"exp":2,"prn::/scope:s":["READ"]}',
        '{"aud":["segmentstore"],"iat":1,"exp":2}',
        '{"aud":"controller","iat":1,"exp":2}',
        '{"iat":1,"exp":2}',
        "[]",
        "null",
        "",
    ],
)
def test_a8_other_bodies_are_refused(body: str) -> None:
    assert refusal(signed_body(body)) == TOKEN_INVALID


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ('{"alg":"none","kid":"2025-11-22-1"}', TOKEN_INVALID),
        ('{"alg":"HS512","kid":"2025-11-22-1"}', TOKEN_INVALID),
        ('{"alg":["HS256"],"kid":"2025-11-22-1"}', TOKEN_INVALID),
        ('{"kid":"2025-11-22-1"}', TOKEN_INVALID),
        ('{"alg":"none","alg":"HS256","kid":"2025-11-22-1"}', TOKEN_INVALID),
        ("[" * 1_000, TOKEN_INVALID),
        ('{"alg":"HS256"}', TOKEN_EXPIRED),
        ('{"alg":"HS256","kid":null}', TOKEN_EXPIRED),
        ('{"alg":"HS256","kid":{"a":"2025-11-22-1"}}', TOKEN_EXPIRED),
        ('{"alg":"HS256","kid":"2025-11-22-2"}', TOKEN_EXPIRED),
    ],
)
def test_a8_other_headers_are_refused(header: str, code: str) -> None:
    body = json.dumps({"aud": "segmentstore", "iat": 1, "exp": NOW_S + 9, "*": "ADMIN"})
    assert refusal(signed_body(body, header)) == code


def test_a_refusal_names_the_unknown_key() -> None:
    """Operators look for it among the keys that the store has loaded. Of a name that is too long they see the start."""
    with pytest.raises(UnauthorizedError, match="signed it, '2025-11-22-2', is not known"):
        verify_token(signed_body("{}", '{"alg":"HS256","kid":"2025-11-22-2"}'), KEYS, NOW_S)
    with pytest.raises(UnauthorizedError, match=f"signed it, '{'k' * 64}', is not known"):
        verify_token(signed_body("{}", '{"alg":"HS256","kid":"%s"}' % ("k" * 65)), KEYS, NOW_S)


def test_unsigned_token_is_refused() -> None:
    header, body, signature = encode_token(CLAIMS, KEY).split(".")
    unsigned = encode(b'{"alg":"none","kid":"2025-11-22-1"}')
    for token in (f"{header}.{body}.", f"{header}.{body}", f"{unsigned}.{body}.", f"{unsigned}.{body}.{signature}"):
        assert refusal(token) == TOKEN_INVALID


def test_a8_long_token_is_refused_unread() -> None:
    body = '{"aud":"segmentstore","iat":1,"exp":2}'
    longest = max(
        (signed_body(body + " " * count) for count in range(1_300, 1_500)),
        key=lambda token: len(token) if len(token) <= TOKEN_BYTES_MAX else 0,
    )
    verify_token(longest, KEYS, NOW_S)
    assert refusal(signed_body(body + " " * 1_500)) == TOKEN_INVALID
    assert refusal("a" * 65_535) == TOKEN_INVALID
    assert refusal("a" * (10 << 20)) == TOKEN_INVALID


def test_token_with_too_many_grants_is_not_made() -> None:
    grants = {stream_resource("shop", f"stream-{number}"): Access.READ for number in range(40)}
    with pytest.raises(IllegalStateError, match="at most 2048"):
        encode_token(TokenClaims("me", 1, 2, grants), KEY)


@pytest.mark.parametrize("name", ["exp", "aud", "shop", "", "prn:/scope:shop", "**"])
def test_grant_must_be_for_a_resource(name: str) -> None:
    """Another name could replace a claim of the token."""
    with pytest.raises(IllegalStateError, match="not a resource"):
        encode_token(TokenClaims("me", 1, 2, {name: Access.READ}), KEY)


def test_token_has_a_minute_more_than_its_life() -> None:
    claims = verify_token(encode_token(CLAIMS, KEY), KEYS, NOW_S)
    assert not claims.has_expired(NOW_S + 600 + CLOCK_SKEW_S - 0.001)
    assert claims.has_expired(NOW_S + 600 + CLOCK_SKEW_S)


# Keys


def test_new_key_signs_when_all_readers_have_it() -> None:
    keys = KEYS.rotated("next", SECRET[::-1], NOW_S, 600)
    until_s = NOW_S + SIGNS_AFTER_S
    assert keys.signing_key(until_s - 1).key_id == KEY.key_id
    assert keys.signing_key(until_s).key_id == "next"
    last = encode_token(TokenClaims("me", until_s - 1, until_s + 599, {}), keys.signing_key(until_s - 1))
    verify_token(last, keys, until_s + 600 + CLOCK_SKEW_S)
    assert refusal(last, keys, until_s + 600 + 15 * 60) == TOKEN_EXPIRED
    assert len(keys.rotated("third", SECRET, until_s + 3_600, 600).keys) == 2, "keys at their end are left out"


def test_later_listed_of_two_keys_signs() -> None:
    """A key that was added later replaces one that signs from the same second on."""
    first, second, waiting = (
        TokenKey("one", SECRET, NOW_S),
        TokenKey("two", SECRET, NOW_S),
        TokenKey("3", SECRET, NOW_S + 9),
    )
    for keys in ((first, second), (waiting, first, second), (first, second, waiting)):
        assert TokenKeys(keys).signing_key(NOW_S) is second


def test_first_key_signs_at_once() -> None:
    keys = TokenKeys(()).rotated("first", SECRET, NOW_S, 600)
    assert keys.signing_key(NOW_S).key_id == "first"


@given(st.lists(st.integers(0, 7_200), min_size=1, max_size=12), st.integers(0, 7_200), st.sampled_from([60, 3_600]))
def test_tokens_outlive_any_rotation(pauses_s: list[int], after_s: int, life_s: int) -> None:
    """A token is valid to its end, by whichever later keys it is verified."""
    keys, now_s = TokenKeys(()).rotated("0", SECRET, NOW_S, life_s), NOW_S
    for number, pause_s in enumerate(pauses_s, 1):
        now_s += pause_s
        token = encode_token(TokenClaims("me", now_s, now_s + life_s, {}), keys.signing_key(now_s))
        keys = keys.rotated(str(number), SECRET, now_s, life_s)
        verify_token(token, keys, now_s + min(after_s, life_s + CLOCK_SKEW_S))
        assert keys.signing_key(now_s).verifies(now_s + life_s)


def test_revoked_key_ends_its_tokens() -> None:
    keys = KEYS.rotated("next", SECRET[::-1], NOW_S, 600)
    token = encode_token(CLAIMS, keys.signing_key(NOW_S))
    verify_token(token, keys, NOW_S)
    left = keys.without(KEY.key_id)
    assert refusal(token, left) == TOKEN_EXPIRED
    assert left.signing_key(NOW_S).key_id == "next", "it signs early, since no other key does"
    with pytest.raises(IllegalStateError, match="no token key 'other'"):
        keys.without("other")
    with pytest.raises(IllegalStateError, match="only token key"):
        left.without("next")


def test_keys_at_their_end_sign_nothing() -> None:
    ended = TokenKeys((TokenKey("old", SECRET, 0, NOW_S),))
    with pytest.raises(IllegalStateError, match="make a new one"):
        ended.signing_key(NOW_S)


def test_number_of_keys_is_bounded() -> None:
    keys = KEYS
    for number in range(KEYS_MAX - 1):
        keys = keys.rotated(str(number), SECRET, NOW_S, 600)
    assert parse_token_keys(token_keys_text(keys)) == keys
    with pytest.raises(IllegalStateError, match="16 token keys verify"):
        keys.rotated("more", SECRET, NOW_S, 600)
    with pytest.raises(IllegalStateError, match="already"):
        KEYS.rotated(KEY.key_id, SECRET, NOW_S, 600)


@given(
    st.lists(
        st.builds(
            TokenKey,
            st.from_regex(r"\A[!-~]{1,64}\Z"),
            st.binary(min_size=32, max_size=64),
            st.integers(0, 2**40),
            st.none() | st.integers(0, 2**40),
        ),
        min_size=1,
        max_size=KEYS_MAX,
        unique_by=lambda key: key.key_id,
    )
)
def test_any_keys_come_back(keys: list[TokenKey]) -> None:
    assert parse_token_keys(token_keys_text(TokenKeys(tuple(keys)))) == TokenKeys(tuple(keys))


@pytest.mark.parametrize(
    "fields",
    [
        {"secret": "00" * 31},
        {"secret": "secret " * 10},
        {"secret": 7},
        {"kid": ""},
        {"kid": "a b"},
        {"kid": "a" * 65},
        {"kid": 7},
        {"signFrom": 1.5},
        {"signFrom": float("inf")},
        {"signFrom": True},
        {"signFrom": None},
        {"verifyUntil": "9"},
        {"verifyUntil": float("nan")},
    ],
)
def test_other_keys_are_refused(fields: dict[str, Any]) -> None:
    good = {"kid": "a", "secret": SECRET.hex(), "signFrom": 0, "verifyUntil": None}
    parse_token_keys(json.dumps({"keys": [good]}))
    with pytest.raises(CorruptError) as caught:
        parse_token_keys(json.dumps({"keys": [good | fields]}))
    assert SECRET.hex() not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "text", ["", "{}", '{"keys":[]}', "[" * 100_000, '{"keys":7}', '{"keys":[7]}', '{"keys":"ab"}']
)
def test_other_texts_are_not_keys(text: str) -> None:
    with pytest.raises(CorruptError):
        parse_token_keys(text)


def test_keys_of_one_id_or_too_many_are_refused() -> None:
    for count, kid in ((2, "same"), (KEYS_MAX + 1, None)):
        keys = TokenKeys(tuple(TokenKey(kid or str(number), SECRET) for number in range(count)))
        with pytest.raises(CorruptError):
            parse_token_keys(token_keys_text(keys))


@given(st.text(max_size=200))
def test_any_text_is_keys_or_refused(text: str) -> None:
    with contextlib.suppress(CorruptError):
        parse_token_keys(text)


def test_secrets_are_not_shown() -> None:
    for shown in (repr(KEY), repr(KEYS), str(KEYS)):
        assert str(SECRET) not in shown
        assert SECRET.hex() not in shown


def test_grants_of_a_scope_come_back() -> None:
    claims = TokenClaims("me", 1, 2, {scope_resource("shop"): Access.READ_UPDATE, "*": Access.NONE})
    assert verify_token(encode_token(claims, KEY), KEYS, NOW_S).grants == claims.grants

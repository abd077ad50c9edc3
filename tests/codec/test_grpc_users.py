"""The users of the bridge: hashes, grants, and their JSON text."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec import grpc_users
from headrace.codec.grpc_users import (
    GRANTS_MAX,
    USERS_MAX,
    Grant,
    PasswordHash,
    User,
    Users,
    check_password,
    check_pattern,
    check_user_name,
    parse_users,
    users_text,
)
from headrace.model.access import Access
from headrace.model.errors import AlreadyExistsError, CorruptError, InvalidRequestError, NotFoundError

GOLDEN = PasswordHash.of(b"correct horse", b"0123456789abcdef")
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,20}", fullmatch=True)
PATTERNS = st.sampled_from(
    ["prn::/", "prn::/*", "prn::/scope:*", "prn::/scope:s", "prn::/scope:s/*", "prn::/scope:s/stream:_RGx"]
)
GRANTS = st.builds(Grant, PATTERNS, st.sampled_from([Access.READ, Access.READ_UPDATE]))
HASHES = st.builds(PasswordHash, st.binary(min_size=16, max_size=16), st.binary(min_size=32, max_size=32))
USERS = st.lists(
    st.builds(User, NAMES, HASHES, st.lists(GRANTS, max_size=4).map(tuple)),
    max_size=5,
    unique_by=lambda user: user.name,
).map(lambda users: Users({user.name: user for user in users}))


def user(*grants: Grant, name: str = "ann") -> User:
    return User(name, GOLDEN, grants)


def test_a_hash_has_these_bytes_in_every_release():
    text = users_text(Users({"ann": user()}))
    assert json.loads(text)["users"]["ann"]["hash"] == (
        "scrypt$16384$8$1$MDEyMzQ1Njc4OWFiY2RlZg==$" + base64.b64encode(GOLDEN.digest).decode()
    )
    assert GOLDEN.digest.hex() == "d0bba9c87933008803afd503b2b88001ff3bbcc6c26dc6947c3bc53801e4d03d"


def test_only_the_password_itself_matches():
    assert GOLDEN.is_of(b"correct horse")
    assert not GOLDEN.is_of(b"correct horsf")
    assert "correct" not in repr(user())
    assert GOLDEN.digest.hex() not in repr(user())


@given(USERS)
def test_text_of_users_reads_back(users: Users):
    assert parse_users(users_text(users)) == users


@given(st.text(max_size=200))
def test_arbitrary_text_is_refused_as_corrupt(text: str):
    with pytest.raises(CorruptError):
        parse_users(text)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("prn::/", ["prn::/"], ["prn::/scope:s"]),
        ("prn::/*", ["prn::/", "prn::/scope:s", "prn::/scope:s/stream:t"], []),
        ("prn::/scope:s", ["prn::/scope:s"], ["prn::/", "prn::/scope:s/stream:t", "prn::/scope:st"]),
        ("prn::/scope:s/*", ["prn::/scope:s/stream:t", "prn::/scope:s/reader-group:g"], ["prn::/scope:s"]),
        ("prn::/scope:s*", ["prn::/scope:s", "prn::/scope:st/stream:t"], ["prn::/scope:t"]),
        ("prn::/scope:s/stream:t", ["prn::/scope:s/stream:t"], ["prn::/scope:s/stream:tt", "prn::/scope:s"]),
        ("prn::/scope:s/stream:t*", ["prn::/scope:s/stream:tt"], ["prn::/scope:s/key-value-table:t"]),
    ],
)
def test_a_grant_matches_as_in_pravega(pattern: str, matching: list[str], others: list[str]):
    grant = Grant(check_pattern(pattern), Access.READ)
    assert [grant.matches(resource) for resource in matching] == [True] * len(matching)
    assert [grant.matches(resource) for resource in others] == [False] * len(others)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "*",
        "s/t",
        "prn::",
        "prn::/scope:",
        "prn::/scope:*/stream:t",
        "prn::/scope:s/topic:t",
        "prn::/scope:s/stream:",
        "prn::/scope:s/stream:*t",
        "prn::/scope:s/stream:t/x",
        "prn::/scope:s:t",
        "prn::/scope:s/stream:ä",
        "prn::/" + "x" * 700,
    ],
)
def test_what_is_not_a_resource_is_refused(pattern: str):
    with pytest.raises(InvalidRequestError, match="is not a resource"):
        check_pattern(pattern)


@given(st.lists(GRANTS, max_size=6), st.sampled_from(["prn::/", "prn::/scope:s", "prn::/scope:s/stream:_RGx"]))
def test_the_highest_grant_counts_in_any_order(grants: list[Grant], resource: str):
    access = user(*grants).access(resource)
    assert access == user(*reversed(grants)).access(resource)
    assert access == max((grant.access for grant in grants if grant.matches(resource)), default=Access.NONE)


def test_a_user_without_a_grant_has_no_access():
    assert user().access("prn::/") is Access.NONE


def test_a_grant_replaces_one_for_the_same_resource():
    changed = user(Grant("prn::/", Access.READ_UPDATE)).with_grant(Grant("prn::/", Access.READ))
    assert changed.grants == (Grant("prn::/", Access.READ),)
    assert changed.without_grant("prn::/").grants == ()
    with pytest.raises(NotFoundError, match="no grant for prn::/scope:s"):
        changed.without_grant("prn::/scope:s")


def test_users_and_grants_are_bounded():
    full = user(*(Grant(f"prn::/scope:s{number}", Access.READ) for number in range(GRANTS_MAX)))
    with pytest.raises(InvalidRequestError, match="maximum"):
        full.with_grant(Grant("prn::/", Access.READ))
    many = Users({f"u{number}": user(name=f"u{number}") for number in range(USERS_MAX)})
    with pytest.raises(InvalidRequestError, match="maximum"):
        many.added(user())
    with pytest.raises(InvalidRequestError, match="bytes of text"):
        users_text(many)


def test_adding_and_removing_a_user():
    users = Users({}).added(user())
    with pytest.raises(AlreadyExistsError):
        users.added(user())
    assert users.without("ann") == Users({})
    with pytest.raises(NotFoundError, match="no user 'bob'"):
        users.without("bob")


@pytest.mark.parametrize("name", ["", ":", "a:b", "-a", "a b", "ä", "x" * 129])
def test_invalid_user_name_is_refused(name: str):
    with pytest.raises(InvalidRequestError):
        check_user_name(name)


@pytest.mark.parametrize("password", [b"", b"short", b"two\nlines!", b"x" * 1025])
def test_invalid_password_is_refused_without_its_text(password: bytes):
    with pytest.raises(InvalidRequestError) as refused:
        check_password(password)
    assert password.decode() == "" or password.decode() not in refused.value.message


SECRET = "scrypt$16384$8$1$c2VjcmV0$c2VjcmV0"


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([], "an object"),
        ({"a b": {}}, "user name"),
        ({"ann": {}}, "user ann needs a `hash`"),
        ({"ann": SECRET}, "user ann needs"),
        ({"ann": {"hash": SECRET}}, "16 bytes of salt"),
        ({"ann": {"hash": SECRET.replace("16384", "2")}}, "of the form scrypt"),
        ({"ann": {"hash": "scrypt$16384$8$1$%$%"}}, "not base64"),
        ({"ann": {"hash": "plain"}}, "needs a `hash`"),
        ({"ann": {"hash": None}}, "needs a `hash`"),
    ],
)
def test_damaged_user_is_named_without_secrets(users: object, message: str):
    with pytest.raises(CorruptError, match=message) as refused:
        parse_users(json.dumps({"users": users}))
    assert "c2VjcmV0" not in refused.value.message
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("grants", "message"),
    [
        ({}, "a list of at most"),
        ([{}], "needs a `hash` and a list"),
        ([{"resource": "prn::/", "permission": "ADMIN"}], "one of READ, READ_UPDATE"),
        ([{"resource": "shop", "permission": "READ"}], "is not a resource"),
        ([{"resource": "prn::/", "permission": "READ"}] * (GRANTS_MAX + 1), "at most"),
    ],
)
def test_damaged_grant_is_refused(grants: object, message: str):
    fields = json.loads(users_text(Users({"ann": user()})))
    fields["users"]["ann"]["grants"] = grants
    with pytest.raises(CorruptError, match=message):
        parse_users(json.dumps(fields))


def test_too_long_text_is_refused():
    with pytest.raises(CorruptError, match="more than"):
        parse_users(" " * (grpc_users.TEXT_BYTES_MAX + 1))

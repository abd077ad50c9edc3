"""Pravega's own client as users of a bridge, against segment stores that demand delegation tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import foreign_client
import pytest

from headrace.adapters.grpc_user_storage import GrpcUserFile
from headrace.codec.grpc_users import Grant, PasswordHash, User, Users, users_text
from headrace.local.running import running_stack
from headrace.model.access import Access

pytestmark = pytest.mark.xdist_group("foreign_client")

PASSWORD = "correct horse"
WRITER = (("prn::/", "READ_UPDATE"), ("prn::/scope:w", "READ_UPDATE"), ("prn::/scope:w/*", "READ_UPDATE"))
READER = (("prn::/scope:w", "READ"), ("prn::/scope:w/*", "READ"))
STREAM_ONLY = (("prn::/scope:w/stream:sam", "READ_UPDATE"),)
GRANTS = {"ann": WRITER, "rob": READER, "sam": STREAM_ONLY, "eve": ()}
COUNT = 40
LISTS = ["list_stream"]
"""The client logs the refusal of a list, and returns an empty one."""

Start = Callable[..., foreign_client.Child]
Call = Callable[..., Any]


def _users() -> Users:
    password = PasswordHash.of(PASSWORD.encode(), b"0123456789abcdef")
    return Users(
        {
            name: User(name, password, tuple(Grant(resource, Access[level]) for resource, level in grants))
            for name, grants in GRANTS.items()
        }
    )


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`start("ann", function, ...)` starts a function of `foreign_client` in a child process, as this user."""
    directory = tmp_path_factory.mktemp("stack")
    (directory / "data").mkdir()
    GrpcUserFile(directory / "data" / "grpc-users.json").write(users_text(_users()))
    with running_stack(directory, segment_stores=2, grpc=True, tokens=True) as state, ExitStack() as children:

        def start(user: str, function: Callable[..., Any], *arguments: Any) -> foreign_client.Child:
            environment = {
                "pravega_client_auth_method": "Basic",
                "pravega_client_auth_username": user,
                "pravega_client_auth_password": PASSWORD,
            }
            child = foreign_client.Child(state["endpoints"]["grpc"], function, *arguments, environment=environment)
            children.callback(child.end)
            return child

        yield start


@pytest.fixture(scope="module")
def call(start: Start) -> Call:
    """As `start`; returns what the function returns. There is a scope with streams, one of them with events."""

    def call(user: str, function: Callable[..., Any], *arguments: Any) -> Any:
        child = start(user, function, *arguments)
        try:
            return child.hear()
        finally:
            child.end()

    assert call("ann", foreign_client.make, "w", ["t", "u", "sam", "transactional"]) == [True] * 5
    call("ann", foreign_client.write_events, "w", "t", foreign_client.numbered(4, range(COUNT)))
    return call


def _numbers() -> dict[str, list[int]]:
    return {str(key): list(range(key, COUNT, 4)) for key in range(4)}


@pytest.mark.parametrize("user", ["ann", "rob"])
def test_user_with_grants_reads_what_was_written(call: Call, user: str):
    """The reader may write the state of its group, although it has READ only."""
    read = call(user, foreign_client.read_events, "w", "t", f"group-of-{user}", COUNT)
    assert foreign_client.numbers_by_key(read) == _numbers()


def test_large_events_pass_with_tokens(call: Call):
    """They go through transient segments, which the client creates and merges itself."""
    large = bytes(10 << 20)
    call("ann", foreign_client.write_events, "w", "u", [(large, "k"), (b"small", "k")])
    assert call("ann", foreign_client.read_events, "w", "u", "large", 2) == [large, b"small"]


def test_a_byte_stream_passes_with_tokens(call: Call):
    seen = call("ann", foreign_client.byte_stream, "w", "bytes")
    assert seen["read"]
    assert seen["truncated"] == [5000, 256 * 4096]


def test_transactions_pass_with_tokens(start: Start, call: Call):
    child = start("ann", foreign_client.life_of_transactions, "w", "transactional", COUNT)
    assert child.hear() == "begun"
    child.say("go on")
    assert child.hear()["open"] == [True, False, False, True, False]
    read = call("rob", foreign_client.read_events, "w", "transactional", "committed", COUNT + 1)
    assert sorted(int(event.split()[1]) for event in read) == list(range(COUNT + 1))


def test_grant_of_one_stream_opens_this_stream_only(call: Call):
    call("sam", foreign_client.write_events, "w", "sam", [(b"1", "k"), (b"2", "k")])
    assert call("ann", foreign_client.read_events, "w", "sam", "of-sam", 2) == [b"1", b"2"]
    refused = call("sam", foreign_client.refusals, "w", "u")
    assert [name for name, message in refused.items() if not message] == LISTS
    assert "no READ_UPDATE on prn::/scope:w/stream:u" in refused["seal_stream"]


def test_reader_is_refused_what_changes_data(call: Call):
    refused = call("rob", foreign_client.refusals, "w", "u")
    assert {name for name, message in refused.items() if not message} == {
        "get_stream_tags",
        "list_stream",
        "create_reader_group",
    }
    for name in ("create_scope", "create_stream", "seal_stream", "delete_stream"):
        assert "PermissionDenied" in refused[name]
        assert "user rob has no READ_UPDATE on prn::/" in refused[name]


def test_user_without_grants_is_refused_soon_and_clearly(call: Call):
    started_s = time.monotonic()
    refused = call("eve", foreign_client.refusals, "w", "u")
    assert time.monotonic() - started_s < 60
    assert [name for name, message in refused.items() if not message] == LISTS
    for name in ("create_scope", "create_stream", "get_stream_tags", "seal_stream"):
        assert "PermissionDenied" in refused[name]
        assert "user eve has no READ" in refused[name]

"""Pravega's own client with tokens that live for ten seconds, and of which no store accepts one that has ended.

It replaces a token five seconds before its end. A deployment's tokens live for ten minutes and a minute longer at the
stores; here a program in front of each process takes these bounds away, so that the rest is as it is deployed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import foreign_client
import pytest

from headrace.adapters.grpc_user_storage import GrpcUserFile
from headrace.codec.grpc_users import Grant, PasswordHash, User, Users, users_text
from headrace.local.running import running_stack
from headrace.model.access import Access

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("foreign_client")]

ROOT = Path(__file__).resolve().parents[2]
LIFE_S = 10
REPLACED_BEFORE_END_S = 5
"""The client's own constant."""
LASTS_S = 120
OUTAGE_S = LIFE_S + 3
PASSWORD = "correct horse"
NO_LEEWAY = """
import headrace.adapters.token_keys
import headrace.codec.delegation_tokens

headrace.adapters.token_keys.LIFE_MIN_S = 1
headrace.codec.delegation_tokens.CLOCK_SKEW_S = 0
"""


class Stack:
    """A stack with such tokens, and its users."""

    def __init__(self, directory: Path, children: contextlib.ExitStack) -> None:
        self._directory, self._children = directory, children

    @property
    def state(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self._directory / "local-stack.json").read_text())
        return document

    def start(self, user: str, function: Callable[..., Any], *arguments: Any) -> foreign_client.Child:
        environment = {
            "pravega_client_auth_method": "Basic",
            "pravega_client_auth_username": user,
            "pravega_client_auth_password": PASSWORD,
        }
        child = foreign_client.Child(self.state["endpoints"]["grpc"], function, *arguments, environment=environment)
        self._children.callback(child.end)
        return child

    def tokens_issued(self, user: str) -> int:
        """How often the client has asked for a token alone."""
        lines = (self._directory / "data" / "world-0001" / "logs" / "audit.log").read_text().splitlines()
        calls = [line for line in map(json.loads, lines) if line["principal"] == f"grpc:{user}"]
        return sum(line["call"] == "getDelegationToken" for line in calls)

    def keep_stores_away(self, seconds: float) -> None:
        """The stack starts each again, and so it is killed again."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            for store in self.state["segmentStores"]:
                with contextlib.suppress(ProcessLookupError, TypeError):  # it is down
                    os.kill(store["pid"], signal.SIGKILL)
            time.sleep(0.5)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("stack")
    (directory / "sitecustomize.py").write_text(NO_LEEWAY)
    password = PasswordHash.of(PASSWORD.encode(), b"0123456789abcdef")
    grants = (Grant("prn::/*", Access.READ_UPDATE),)
    (directory / "data").mkdir()
    users = Users({name: User(name, password, grants) for name in ("ann", "rob")})
    GrpcUserFile(directory / "data" / "grpc-users.json").write(users_text(users))
    environment = {"PYTHONPATH": f"{directory}{os.pathsep}{ROOT}", "HEADRACE_TOKEN_LIFE_S": str(LIFE_S)}
    with (
        running_stack(directory, segment_stores=2, grpc=True, tokens=True, environment=environment),
        contextlib.ExitStack() as children,
    ):
        yield Stack(directory, children)


def made(stack: Stack, stream: str) -> None:
    assert all(stack.start("ann", foreign_client.make, stream, ["t"]).hear())


def test_a5_short_tokens_for_two_minutes(stack: Stack):
    made(stack, "short")
    writer = stack.start("ann", foreign_client.write_on_demand, "short", "t")
    reader = stack.start("rob", foreign_client.read_for_ever, "short", "t", "group", "reader")
    issued, began_s, number = stack.tokens_issued("ann"), time.monotonic(), 0
    read: list[int] = []
    while (elapsed_s := time.monotonic() - began_s) < LASTS_S or len(read) < number:
        if elapsed_s < LASTS_S:
            writer.say([(b"%d" % number, "key")])
            assert writer.hear() == "flushed"
            number += 1
        read += [int(event) for event in reader.hear()]
        time.sleep(0.1)
    assert read == list(range(number))
    issued = stack.tokens_issued("ann") - issued
    assert 2 <= issued <= elapsed_s / (LIFE_S - REPLACED_BEFORE_END_S) + 1


def test_a5_a_writer_outlives_an_outage_and_its_token(stack: Stack):
    """Its set-up would be repeated with the ended token for ever, if the store answered as Pravega's does."""
    made(stack, "away")
    writer = stack.start("ann", foreign_client.write_on_demand, "away", "t")
    for number in range(3):
        writer.say([(b"%d" % number, "key")])
        if number == 1:
            stack.keep_stores_away(OUTAGE_S)
        assert writer.hear() == "flushed"
    events = stack.start("rob", foreign_client.read_events, "away", "t", "group", 3).hear()
    assert [int(event) for event in events] == [0, 1, 2]

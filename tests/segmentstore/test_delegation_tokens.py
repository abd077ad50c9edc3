"""A store that needs delegation tokens: what it refuses, and what happens at the end of a token."""

from __future__ import annotations

from typing import Any

import pytest
from session_channels import feed, open_session
from store_world import World
from token_clients import (
    COMMANDS,
    EXPIRED,
    INVALID,
    KEY,
    KEYS,
    LIFE_S,
    REVOKED,
    SECRET,
    SEGMENT,
    STREAM,
    TABLE,
    admin,
    prepare,
    refused,
    set_up,
    token_of,
    with_token,
    writing,
)

from headrace import wire
from headrace.codec.delegation_tokens import CLOCK_SKEW_S, TOKEN_EXPIRED, TOKEN_INVALID, TokenKey, TokenKeys
from headrace.model import segment_attributes
from headrace.model.access import Access, scope_resource, stream_resource
from headrace.segmentstore.connections.connection_limits import STALL_S
from headrace.wire.required_access import REQUIRED_ACCESS, required_access

pytestmark = pytest.mark.anyio

END_S = LIFE_S + CLOCK_SKEW_S
OTHER_KEY = TokenKey("first", SECRET[::-1])
BY_NAME = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)


@pytest.fixture
def world(make_world: type[World]) -> World:
    return make_world(container_count=1, token_keys=KEYS)


def level(command: Any) -> Access:
    return required_access(command)[0]


def test_a4_commands_are_complete() -> None:
    assert {type(command) for command in COMMANDS} == REQUIRED_ACCESS.keys()


async def test_every_request_of_a_session_is_known(world: World) -> None:
    async with world.running() as running:
        session, _ = open_session(running)
        pooled = {wire.UpdateTableEntries, wire.RemoveTableKeys}
        free = {wire.Hello, wire.KeepAlive, wire.Padding}
        assert session._handlers.keys() | pooled == REQUIRED_ACCESS.keys() | free


def wrong_tokens(world: World, command: Any) -> list[tuple[str, int]]:
    """Tokens with which the command is refused, and the codes of the refusals."""
    below = Access(level(command) - 1)
    nearly = [
        stream_resource("shop", "order"),
        stream_resource("shop", "orders-of-2025"),
        stream_resource("sho", "orders"),
        "prn::/scope:shop/stream:",
        "prn::/scope:shop/",
        "prn::/scope:",
        "prn::/",
        "prn::/scope:shop/stream:*",
        "prn::*",
    ]
    grants = dict.fromkeys(nearly, Access.ADMIN)
    everything = {"*": Access.ADMIN}
    return [
        ("", INVALID),
        ("a.b.c", INVALID),
        ("a" * 2_049, INVALID),
        ("ü" * 30_000, INVALID),
        (token_of(world, {}), INVALID),
        (token_of(world, grants), INVALID),
        (token_of(world, {"*": below}), INVALID),
        (token_of(world, {scope_resource("shop"): below, STREAM: below}), INVALID),
        (token_of(world, everything)[:-1] + "=", INVALID),
        (token_of(world, everything, key=OTHER_KEY), INVALID),
        (token_of(world, everything, key=REVOKED), EXPIRED),
        (token_of(world, everything, life_s=-CLOCK_SKEW_S), EXPIRED),
        (token_of(world, everything, life_s=-1_000), EXPIRED),
    ]


@BY_NAME
async def test_a4_command_needs_its_level(world: World, command: Any) -> None:
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        assert await client.call(command) == refused(command.request_id)
        for token, code in wrong_tokens(world, command):
            assert await client.call(with_token(command, token)) == refused(command.request_id, code), token
        grants = {"*": level(command)}
        assert not isinstance(
            await client.call(with_token(command, token_of(world, grants))), wire.AuthTokenCheckFailed
        )
        assert running.store.metrics.tokens_refused == {TOKEN_INVALID: 11, TOKEN_EXPIRED: 3}


async def test_a4_grant_of_the_scope_is_enough(world: World) -> None:
    """But not for what only the parts of the deployment do."""
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        token = token_of(world, {scope_resource("shop"): Access.READ_UPDATE})
        for command in COMMANDS:
            reply = await client.call(with_token(command, token))
            assert isinstance(reply, wire.AuthTokenCheckFailed) == (level(command) > Access.READ_UPDATE), command


async def test_a4_token_for_writing_removes_no_history(world: World) -> None:
    group = "shop/_RGprices/0.#epoch.0"
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        assert isinstance(await client.call(wire.CreateSegment(1, group, 0, 0, admin(world))), wire.SegmentCreated)
        writes = token_of(world, {scope_resource("shop"): Access.READ_UPDATE})
        manages = token_of(world, {scope_resource("shop"): Access.MANAGE})
        await set_up(client, writes)
        await client.append(7, 1, b"event")
        for change in (wire.TruncateSegment(3, SEGMENT, 1), wire.SealSegment(3, SEGMENT)):
            assert await client.call(with_token(change, writes)) == refused(3)
            assert not isinstance(await client.call(with_token(change, manages)), wire.AuthTokenCheckFailed)
        assert await client.call(wire.SealSegment(3, group, writes)) == wire.SegmentSealed(3, group)


async def test_store_without_tokens_looks_at_none(world: World) -> None:
    world.token_keys = None
    async with world.running() as running:
        assert running.store.tokens is None
        client = await running.connect()
        await prepare(world, client)
        for command in COMMANDS:
            assert not isinstance(await client.call(with_token(command, "a.b.c")), wire.AuthTokenCheckFailed)


async def test_merge_needs_both_segments(world: World) -> None:
    other = "shop/others/0.#epoch.0"
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        await client.call(wire.CreateSegment(1, other, 0, 0, admin(world)))
        for grants in ({STREAM: Access.ADMIN}, {stream_resource("shop", "others"): Access.ADMIN}):
            token = token_of(world, grants)
            assert await client.call(wire.MergeSegments(5, SEGMENT, other, token)) == refused(5)
            assert await client.call(wire.MergeSegmentsBatch(6, SEGMENT, (SEGMENT, other), token)) == refused(6)
        token = token_of(world, {STREAM: Access.ADMIN, stream_resource("shop", "others"): Access.ADMIN})
        reply = await client.call(wire.MergeSegments(7, SEGMENT, other, token))
        assert not isinstance(reply, wire.AuthTokenCheckFailed)


async def test_writer_merges_its_transient_segment(world: World) -> None:
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        token = writing(world)
        created = await client.call(wire.CreateTransientSegment(1, 7, SEGMENT, token))
        assert isinstance(created, wire.SegmentCreated)
        reply = await client.call(wire.SetupAppend(2, 7, created.segment, token))
        assert isinstance(reply, wire.AppendSetup)
        await client.append(7, 1, b"large event")
        assert await client.call(wire.DeleteSegment(3, created.segment, token)) == refused(3)
        merged = await client.call(wire.MergeSegments(4, SEGMENT, created.segment, token))
        assert isinstance(merged, wire.SegmentsMerged)


async def test_attributes_of_the_store_are_not_for_clients(world: World) -> None:
    """They have the scaling policy, which UpdateSegmentPolicy does not change without ADMIN either."""
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        token, policy = writing(world), segment_attributes.SCALE_POLICY_RATE
        for attribute_id, reply in ((5, wire.SegmentAttributeUpdated(6, True)), (policy, refused(6))):
            before = await client.call(wire.GetSegmentAttribute(5, SEGMENT, attribute_id, token))
            change = wire.UpdateSegmentAttribute(6, SEGMENT, attribute_id, 9, before.value, token)
            assert await client.call(change) == reply


async def test_large_table_commands_need_a_token(world: World) -> None:
    """They do not come to the session as other commands do."""
    keys = tuple(wire.TableKey(b"%07d" % number * 100) for number in range(600))
    entries = tuple(wire.TableEntry(b"%07d" % number, wire.NO_VERSION, bytes(1_000)) for number in range(1_000))
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        token = token_of(world, {scope_resource("shop"): Access.READ})
        assert await client.call(wire.ReadTable(5, TABLE, "", keys)) == refused(5)
        used_bytes = running.store.pool.used_bytes
        for _ in range(3):
            assert await client.call(wire.UpdateTableEntries(6, TABLE, token, entries)) == refused(6)
        assert running.store.pool.used_bytes <= used_bytes + world.block_bytes
        assert isinstance(await client.call(wire.ReadTable(7, TABLE, token, keys)), wire.TableRead)
        assert running.listener.receive_memory.used_bytes == 0


async def test_append_without_set_up_closes_the_connection(world: World) -> None:
    """Appends have no token: after a refused set-up they violate the protocol, and take no memory."""
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        assert await client.call(wire.SetupAppend(1, 7, SEGMENT, "no")) == refused(1)
        client.send(wire.AppendBlockEnd(7, 3, b"abc", 1, 1, 9))
        assert await client.closed()
        reader = await running.connect()
        info = await reader.call(wire.GetStreamSegmentInfo(2, SEGMENT, admin(world)))
        assert info.write_offset == 0


async def test_a13_repeated_requests_are_verified_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        token, tokens = writing(world), running.store.tokens
        assert tokens is not None
        ask = wire.GetStreamSegmentInfo(5, SEGMENT, token)
        assert isinstance(await client.call(ask), wire.StreamSegmentInfo)
        monkeypatch.setattr(tokens, "claims", None)  # another check would fail
        assert isinstance(await client.call(ask), wire.StreamSegmentInfo)
        monkeypatch.undo()
        assert await client.call(with_token(ask, "")) == refused(5)
        assert await client.call(wire.DeleteSegment(6, SEGMENT, token)) == refused(6)
        other = wire.GetStreamSegmentInfo(7, "shop/others/0.#epoch.0", token)
        assert await client.call(other) == refused(7)
        world.clock.advance(END_S)
        assert await client.call(ask) == refused(5, EXPIRED)


async def test_token_works_for_a_minute_after_its_end(world: World) -> None:
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        ask = wire.GetStreamSegmentInfo(5, SEGMENT, writing(world))
        world.clock.advance(END_S - 1)
        assert isinstance(await client.call(ask), wire.StreamSegmentInfo)
        world.clock.advance(1)
        assert await client.call(ask) == refused(5, EXPIRED)


async def test_revoked_key_ends_its_tokens_at_once(world: World) -> None:
    world.token_keys = TokenKeys((KEY, REVOKED))
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        ask = wire.GetStreamSegmentInfo(5, SEGMENT, token_of(world, {STREAM: Access.READ}, key=REVOKED))
        assert isinstance(await client.call(ask), wire.StreamSegmentInfo)
        assert running.store.tokens is not None
        running.store.tokens.use(KEYS)
        assert await client.call(ask) == refused(5, EXPIRED)
        assert isinstance(await client.call(with_token(ask, writing(world))), wire.StreamSegmentInfo)


async def test_store_without_keys_refuses_every_token(world: World) -> None:
    world.token_keys = TokenKeys(())
    async with world.running() as running:
        client = await running.connect()
        ask = wire.GetStreamSegmentInfo(5, SEGMENT, admin(world))
        assert await client.call(ask) == refused(5, EXPIRED)


# Versions


@pytest.mark.parametrize(("version", "closes"), [(15, True), (16, False), (17, False)])
@pytest.mark.parametrize("token_is", ["invalid", "expired"])
async def test_refused_set_up_depends_on_the_version(world: World, version: int, closes: bool, token_is: str) -> None:
    """The Rust client repeats an expired token for ever, and ignores a refusal on an open connection."""
    async with world.running() as running:
        await prepare(world, await running.connect())
        client = await running.connect(version)
        ended = token_of(world, {STREAM: Access.READ_UPDATE}, life_s=-1_000)
        token = ended if token_is == "expired" else ""
        code = EXPIRED if token_is == "expired" and not closes else INVALID
        assert await client.call(wire.SetupAppend(5, 7, SEGMENT, token)) == refused(5, code)
        if closes:
            assert await client.closed()
        else:
            assert await set_up(client, writing(world)) == wire.NO_EVENT_NUMBER


@pytest.mark.parametrize("version", [15, 17])
async def test_refused_read_keeps_the_connection(world: World, version: int) -> None:
    async with world.running() as running:
        await prepare(world, await running.connect())
        client = await running.connect(version)
        ended = token_of(world, {STREAM: Access.READ}, life_s=-1_000)
        for request_id, (token, code) in enumerate([("", INVALID), (ended, EXPIRED)]):
            assert await client.call(wire.ReadSegment(SEGMENT, 0, 9, token, request_id)) == refused(request_id, code)
        assert isinstance(
            await client.call(wire.GetStreamSegmentInfo(9, SEGMENT, writing(world))), wire.StreamSegmentInfo
        )


async def test_peer_without_hello_is_treated_as_old(world: World) -> None:
    async with world.running() as running:
        session, channel = open_session(running)
        await feed(session, channel, wire.encode(wire.SetupAppend(5, 7, SEGMENT, "")))
        assert channel.replies() == [refused(5)]
        assert channel.closed
        session.disconnected()


# Connections


async def test_connection_without_a_valid_token_is_closed(world: World) -> None:
    async with world.running() as running:
        client = await running.connect()
        await prepare(world, client)
        hello = wire.encode(wire.Hello(17, 5))
        stranger, its_channel = open_session(running)
        known, known_channel = open_session(running)
        await feed(stranger, its_channel, hello + wire.encode(wire.GetStreamSegmentInfo(1, SEGMENT, "")))
        await feed(known, known_channel, hello + wire.encode(wire.GetStreamSegmentInfo(1, SEGMENT, writing(world))))
        world.clock.advance(STALL_S + 1)
        for session in (stranger, known):
            session.check_stalled(world.clock.monotonic_s())
        assert its_channel.closed
        assert not known_channel.closed
        stranger.disconnected()
        known.disconnected()


async def test_refusals_are_logged_without_the_token(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with world.running() as running:
        client = await running.connect()
        token = token_of(world, {"*": Access.ADMIN}, key=OTHER_KEY)
        for request_id in range(10):
            await client.call(wire.GetStreamSegmentInfo(request_id, "shop/a\nb/0" + "x" * 1_000, token))
        lines = [record.getMessage() for record in caplog.records if "event=token_refused" in record.getMessage()]
        assert len(lines) == 1
        assert len(lines[0]) < 600
        assert "\n" not in lines[0]
        assert token not in caplog.text
        assert token.split(".")[2] not in caplog.text
        world.clock.advance(10)
        await client.call(wire.GetStreamSegmentInfo(21, SEGMENT, token))
        assert "refused=11" in caplog.records[-1].getMessage()

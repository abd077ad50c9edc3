"""Every table command over the wire, with the replies that the protocol has for each case."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from session_channels import feed, open_session
from store_world import RunningStore, WireClient, World
from table_client import TableClient

from headrace import wire
from headrace.model.limits import TABLE_KEY_BYTES_MAX, TABLE_VALUE_BYTES_MAX
from headrace.model.names import container_of_segment
from headrace.model.segment_attributes import SEGMENT_TYPE, TABLE_KEY_LENGTH
from headrace.segmentstore.connections.receive_memory import LARGE_PIECE_BYTES, ReceiveMemory

pytestmark = pytest.mark.anyio

TABLE = "scope/_tables/0.#epoch.0"
SORTED = "scope/_tables/1.#epoch.0"
PLAIN = "scope/stream/0.#epoch.0"
MISSING = "scope/_tables/9.#epoch.0"
ANY, NONE = wire.NO_VERSION, wire.NOT_EXISTS
WRITER = 5


@pytest.fixture
async def running(world: World) -> AsyncIterator[RunningStore]:
    async with world.running() as running:
        yield running


@pytest.fixture
async def client(running: RunningStore) -> WireClient:
    """A client of a store with a plain segment and two tables."""
    client = await running.connect()
    await client.create(PLAIN)
    for name, key_length in ((TABLE, 0), (SORTED, 2)):
        reply = await client.call(wire.CreateTableSegment(1, name, "", False, key_length))
        assert reply == wire.SegmentCreated(1, name)
    return client


@pytest.fixture
def tables(client: WireClient) -> TableClient:
    return TableClient(client, TABLE)


def versions_of(reply):
    assert isinstance(reply, wire.TableEntriesUpdated), reply
    return reply.versions


async def test_what_is_written_is_read_with_its_version(tables):
    first, second = versions_of(await tables.put((b"a", ANY, b"1"), (b"b", NONE, b"")))
    assert 0 <= first < second
    assert await tables.get(b"b", b"x", b"a", b"a") == [
        (b"b", second, b""),
        (b"x", NONE, b""),
        (b"a", first, b"1"),
        (b"a", first, b"1"),
    ]
    (third,) = versions_of(await tables.put((b"a", first, b"2")))
    assert third > second
    assert await tables.get(b"a") == [(b"a", third, b"2")]


BAD_VERSION, NO_KEY = wire.TableKeyBadVersion, wire.TableKeyDoesNotExist
PRESENT, ABSENT = b"present", b"absent"


@pytest.mark.parametrize("removal", [False, True])
@pytest.mark.parametrize(
    ("key", "condition", "refusal"),
    [
        (PRESENT, "any", None),
        (PRESENT, "right", None),
        (PRESENT, "wrong", BAD_VERSION),
        (PRESENT, "none", BAD_VERSION),
        (ABSENT, "any", None),
        (ABSENT, "none", None),
        (ABSENT, "wrong", NO_KEY),
    ],
)
async def test_conditions_on_versions(tables, key, condition, refusal, removal):
    (version,) = versions_of(await tables.put((PRESENT, ANY, b"old")))
    wanted = {"any": ANY, "right": version, "wrong": version + 1, "none": NONE}[condition]
    before = await tables.info()
    if removal:
        reply = await tables.remove((b"other", ANY), (key, wanted))
    else:
        reply = await tables.put((b"other", ANY, b"new"), (key, wanted, b"new"))
    if refusal is not None:
        assert reply == refusal(4 if removal else 3, TABLE)
        assert await tables.info() == before
        assert await tables.values(b"other", PRESENT) == [b"", b"old"]
    else:
        assert isinstance(reply, wire.TableKeysRemoved if removal else wire.TableEntriesUpdated)
        assert await tables.values(key) == [b"" if removal else b"new"]


async def test_batch_conditions_precede_it_and_last_entry_wins(tables):
    versions = versions_of(await tables.put((b"a", NONE, b"1"), (b"a", NONE, b"2"), (b"b", ANY, b"3")))
    assert len(set(versions)) == 3
    assert await tables.get(b"a") == [(b"a", versions[1], b"2")]
    again = versions_of(await tables.put((b"a", versions[1], b"4"), (b"a", versions[1], b"5")))
    assert await tables.get(b"a") == [(b"a", again[1], b"5")]
    assert await tables.remove((b"a", again[1]), (b"a", again[1])) == wire.TableKeysRemoved(4, TABLE)
    assert await tables.get(b"a") == [(b"a", NONE, b"")]
    assert (await tables.info()).entry_count == 1


async def test_a_condition_on_the_length_of_the_table(tables):
    assert versions_of(await tables.put((b"a", ANY, b"1"), offset=0)) == (0,)
    length = (await tables.info()).length
    assert await tables.put((b"a", ANY, b"2"), offset=0) == wire.SegmentIsTruncated(3, TABLE, length)
    assert await tables.remove((b"a", ANY), offset=length + 1) == wire.SegmentIsTruncated(4, TABLE, length)
    assert await tables.remove((b"a", ANY), offset=length) == wire.TableKeysRemoved(4, TABLE)


async def test_pipelined_updates_are_checked_in_their_order(client):
    for round_ in range(50):
        client.send(
            wire.UpdateTableEntries(round_, TABLE, "", (wire.TableEntry(b"k%d" % round_, NONE, b"first"),)),
            wire.UpdateTableEntries(1000 + round_, TABLE, "", (wire.TableEntry(b"k%d" % round_, NONE, b"second"),)),
            wire.ReadTable(2000 + round_, TABLE, "", (wire.TableKey(b"k%d" % round_),)),
        )
    replies = {(reply := await client.receive()).request_id: reply for _ in range(150)}
    for round_ in range(50):
        assert isinstance(replies[round_], wire.TableEntriesUpdated)
        assert replies[1000 + round_] == wire.TableKeyBadVersion(1000 + round_, TABLE)
        (entry,) = replies[2000 + round_].entries
        assert entry.value == b"first"


async def test_pages_of_entries_and_keys_end_with_an_empty_one(client, tables):
    keys = [b"%03d" % number for number in range(25)]
    await tables.put(*((key, ANY, b"v" + key) for key in reversed(keys)))
    await tables.remove((b"007", ANY))
    expected = [key for key in keys if key != b"007"]
    found, token, sizes = [], b"", []
    while True:
        page = await client.call(wire.ReadTableEntries(8, TABLE, "", 10, token))
        assert isinstance(page, wire.TableEntriesRead)
        if not page.entries:
            break
        sizes.append(len(page.entries))
        found += [(entry.key, bytes(entry.value)) for entry in page.entries]
        token = bytes(page.continuation_token)
    assert sizes == [10, 10, 4]
    assert found == [(key, b"v" + key) for key in expected]
    assert bytes(page.continuation_token) == token
    page = await client.call(wire.ReadTableKeys(9, TABLE, "", 100))
    assert [key.key for key in page.keys] == expected
    versions = await tables.get(*expected)
    assert [key.version for key in page.keys] == [version for _, version, _ in versions]
    page = await client.call(wire.ReadTableKeys(9, TABLE, "", 0, bytes(page.continuation_token)))
    assert page.keys == ()


async def test_a_page_is_full_after_so_many_bytes(client, tables):
    for number in range(4):
        await tables.put((b"%d" % number, ANY, bytes(900_000)))
    page = await client.call(wire.ReadTableEntries(8, TABLE, "", 10))
    assert [entry.key for entry in page.entries] == [b"0", b"1", b"2"]
    assert len((await tables.delta(0, 10)).entries) == 3


async def test_ranges_of_a_table_with_keys_of_one_length(client, tables):
    await tables.put(*((bytes([high, 0x80]), ANY, b"v") for high in (0, 1, 0x7F, 0x80, 0xFF)), table=SORTED)

    async def ranged(first, last, count=10):
        page = await client.call(wire.ReadTableKeys(8, SORTED, "", count, b"", b"", first, last))
        return [key.key for key in page.keys]

    assert await ranged(b"", b"") == [b"\0\x80", b"\1\x80", b"\x7f\x80", b"\x80\x80", b"\xff\x80"]
    assert await ranged(b"\1\x80", b"\x80\x80") == [b"\1\x80", b"\x7f\x80", b"\x80\x80"]
    assert await ranged(b"\1\x81", b"\x80\x7f") == [b"\x7f\x80"]
    assert await ranged(b"\1\x80", b"\x80\x80", 2) == [b"\1\x80", b"\x7f\x80"]
    assert await ranged(b"\xff\x81", b"") == []
    page = await client.call(wire.ReadTableEntries(8, SORTED, "", 9, b"", b"", b"\x80\0", b"\x80\xff"))
    assert [entry.key for entry in page.entries] == [b"\x80\x80"]
    assert (await tables.info(SORTED)).key_length == 2
    for reply in (
        await tables.put((b"abc", ANY, b"v"), table=SORTED),
        await tables.remove((b"abc", ANY), table=SORTED),
        await client.call(wire.ReadTable(3, SORTED, "", (wire.TableKey(b"a"),))),
    ):
        assert isinstance(reply, wire.ErrorMessage)
        assert reply.error_code == wire.ERROR_CODE_ILLEGAL_ARGUMENT


async def test_a_delta_has_the_newest_entries_in_the_order_of_writing(tables):
    for key, value in ((b"b", b"1"), (b"a", b"2"), (b"c", b"3"), (b"b", b"4")):
        await tables.put((key, ANY, value))
    await tables.remove((b"c", ANY))
    first = await tables.delta(0, 1)
    assert [(entry.key, bytes(entry.value)) for entry in first.entries] == [(b"a", b"2")]
    assert (first.reached_end, first.should_clear) == (False, False)
    second = await tables.delta(first.last_position, 10)
    assert [(entry.key, bytes(entry.value)) for entry in second.entries] == [(b"b", b"4")]
    assert second.reached_end
    assert second.last_position == (await tables.info()).length
    end = await tables.delta(second.last_position, 10)
    assert (end.entries, end.reached_end, end.last_position) == ((), True, second.last_position)
    (version,) = versions_of(await tables.put((b"d", ANY, b"5")))
    (entry,) = (await tables.delta(end.last_position, 10)).entries
    assert (entry.key, entry.version) == (b"d", version)


@pytest.mark.parametrize("position", [-1, 3, 1 << 40])
async def test_positions_that_no_delta_gave(client, tables, position):
    await tables.put((b"abcdefghij" * 10, ANY, b"k" * 100))
    reply = await client.call(wire.ReadTableEntriesDelta(7, TABLE, "", position, 10))
    assert isinstance(reply, wire.ErrorMessage)
    assert len((await tables.delta(0, 10)).entries) == 1


async def test_the_life_of_a_table(client, tables):
    await tables.put((b"a", ANY, b"1"))
    assert await client.call(wire.CreateTableSegment(1, TABLE)) == wire.SegmentAlreadyExists(1, TABLE)
    info = await tables.info()
    assert (info.start_offset, info.entry_count, info.key_length) == (0, 1, 0)
    assert info.length > 0
    kept = await client.call(wire.DeleteTableSegment(2, TABLE, True))
    assert kept == wire.TableSegmentNotEmpty(2, TABLE)
    await tables.remove((b"a", ANY))
    assert await client.call(wire.DeleteTableSegment(2, TABLE, True)) == wire.SegmentDeleted(2, TABLE)
    assert await client.call(wire.GetTableSegmentInfo(3, TABLE)) == wire.NoSuchSegment(3, TABLE)
    assert await client.call(wire.CreateTableSegment(1, TABLE)) == wire.SegmentCreated(1, TABLE)
    assert await tables.values(b"a") == [b""]
    await tables.put((b"a", ANY, b"2"))
    assert await client.call(wire.DeleteTableSegment(2, TABLE, False)) == wire.SegmentDeleted(2, TABLE)
    for bad in (-1, TABLE_KEY_BYTES_MAX + 1):
        assert isinstance(await client.call(wire.CreateTableSegment(1, MISSING, "", False, bad)), wire.ErrorMessage)


def on(name):
    key, entry = wire.TableKey(b"k"), wire.TableEntry(b"k", ANY, b"v")
    return [
        wire.UpdateTableEntries(3, name, "", (entry,)),
        wire.RemoveTableKeys(3, name, "", (key,)),
        wire.ReadTable(3, name, "", (key,)),
        wire.ReadTableKeys(3, name, "", 10),
        wire.ReadTableEntries(3, name, "", 10),
        wire.ReadTableEntriesDelta(3, name, "", 0, 10),
        wire.GetTableSegmentInfo(3, name),
        wire.DeleteTableSegment(3, name, False),
    ]


async def test_commands_on_tables_that_are_not_there_or_elsewhere(running, client):
    for command in on(MISSING):
        assert await client.call(command) == wire.NoSuchSegment(3, MISSING)
    for command in on(PLAIN):
        reply = await client.call(command)
        assert isinstance(reply, wire.ErrorMessage)
        assert reply.error_code == wire.ERROR_CODE_ILLEGAL_ARGUMENT
    running.store._owned.clear()
    for command in on(TABLE):
        assert await client.call(command) == wire.WrongHost(3, TABLE)


async def test_commands_that_would_harm_a_table(client, tables):
    await tables.put((b"a", ANY, b"1"))
    reply = await client.call(wire.SetupAppend(3, WRITER, TABLE))
    assert isinstance(reply, wire.OperationUnsupported)
    for command in (
        wire.TruncateSegment(3, TABLE, 5),
        wire.SealSegment(3, TABLE),
        wire.MergeSegments(3, PLAIN, TABLE),
        wire.MergeSegments(3, TABLE, PLAIN),
        wire.MergeSegmentsBatch(3, PLAIN, (TABLE,)),
        wire.UpdateSegmentAttribute(3, TABLE, TABLE_KEY_LENGTH, 1, 0),
        wire.UpdateSegmentAttribute(3, PLAIN, SEGMENT_TYPE, 1, -(1 << 63)),
    ):
        assert isinstance(await client.call(command), wire.ErrorMessage), command
    assert await tables.values(b"a") == [b"1"]


async def test_a_table_that_a_former_version_sealed(running, client, tables):
    """It can be read and removed."""
    await tables.put((b"a", ANY, b"1"))
    await running.store.owner_of(TABLE).container.seal(TABLE)
    assert await tables.put((b"a", ANY, b"2")) == wire.SegmentIsSealed(3, TABLE)
    assert await tables.values(b"a") == [b"1"]
    assert await client.call(wire.DeleteSegment(3, TABLE)) == wire.SegmentDeleted(3, TABLE)


async def test_bounds_of_keys_values_and_versions(tables):
    longest = (b"k" * TABLE_KEY_BYTES_MAX, ANY, b"v" * TABLE_VALUE_BYTES_MAX)
    assert len(versions_of(await tables.put(longest))) == 1
    assert await tables.values(longest[0]) == [longest[2]]
    for change in (
        (b"", ANY, b"v"),
        (b"k" * (TABLE_KEY_BYTES_MAX + 1), ANY, b"v"),
        (b"k", ANY, b"v" * (TABLE_VALUE_BYTES_MAX + 1)),
        (b"k", -5, b"v"),
    ):
        reply = await tables.put(change)
        assert isinstance(reply, wire.ErrorMessage)
        assert reply.error_code == wire.ERROR_CODE_ILLEGAL_ARGUMENT
    assert versions_of(await tables.put()) == ()
    assert await tables.get() == []


async def test_a_batch_of_many_megabytes_needs_no_memory_but_the_cache(make_world: type[World]):
    world = make_world(cache_bytes=32 << 20, block_bytes=1 << 20, file_bytes=64 << 20)

    async with world.running() as running:
        client = await running.connect()
        await client.call(wire.CreateTableSegment(1, TABLE))
        tables = TableClient(client, TABLE)
        values = {b"%02d" % number: bytes([number]) * 1_000_000 for number in range(15)}
        before = running.store.pool.untiered_bytes
        await tables.put(*((key, ANY, value) for key, value in values.items()))
        assert 15_000_000 < running.store.pool.untiered_bytes - before < 15_010_000
        for key, value in values.items():
            assert await tables.values(key) == [value]
        running.store.table_memory.drop(container_of_segment(TABLE, world.container_count), TABLE)
        assert await tables.values(b"14") == [values[b"14"]]  # read again, in pieces that end inside of entries
        too_much = wire.ReadTable(5, TABLE, "", tuple(wire.TableKey(key) for key in values))
        assert isinstance(await client.call(too_much), wire.ErrorMessage)


async def test_a_table_survives_restarts(world: World):
    async with world.running(graceful=False) as running:
        tables = TableClient(client := await running.connect(), TABLE)
        await client.call(wire.CreateTableSegment(1, SORTED, "", False, 2))
        await tables.put((b"k1", ANY, b"1"), (b"k2", ANY, b"2"), table=SORTED)
        versions = versions_of(await tables.put((b"k1", ANY, b"3"), table=SORTED))
        await tables.remove((b"k2", ANY), table=SORTED)
    for graceful in (True, False):
        async with world.running(graceful=graceful) as running:
            tables = TableClient(await running.connect(), TABLE)
            assert await tables.get(b"k1", b"k2", table=SORTED) == [(b"k1", versions[0], b"3"), (b"k2", NONE, b"")]
            assert await tables.put((b"k1", NONE, b"4"), table=SORTED) == wire.TableKeyBadVersion(3, SORTED)
            info = await tables.info(SORTED)
            assert (info.entry_count, info.key_length) == (1, 2)
            versions = versions_of(await tables.put((b"k1", versions[0], b"3"), table=SORTED))


async def test_a_question_that_waits_its_turn_keeps_its_keys(running, tables):
    """What it was received into holds other commands meanwhile."""

    await tables.put(*((bytes([key]), ANY, b"v") for key in b"abcdef"))
    session, channel = open_session(running)
    session.writing_paused()  # the peer has not taken what was sent before
    await feed(session, channel, wire.encode(wire.ReadTableKeys(3, TABLE, "", 9, b"", b"", b"c", b"e")))
    await feed(session, channel, wire.encode(wire.GetStreamSegmentInfo(4, PLAIN)) * 3)
    session.writing_resumed()
    await running.until(lambda: any(isinstance(each, wire.TableKeysRead) for each in channel.replies()))
    (reply,) = (each for each in channel.replies() if isinstance(each, wire.TableKeysRead))
    assert [bytes(each.key) for each in reply.keys] == [b"c", b"d", b"e"]
    session.disconnected()


async def test_read_of_many_keys_is_answered_before_the_next_command(running, tables):
    """It holds receive memory while it waits; a connection must not have many of them."""

    await tables.put((b"k" * 1000, ANY, b"v"))
    memory = ReceiveMemory(32 << 20, 100)
    session, channel = open_session(running, memory=memory)
    question = wire.encode(wire.ReadTable(3, TABLE, "", (wire.TableKey(b"k" * 1000),) * 400))
    session.writing_paused()
    await feed(session, channel, question)
    assert not channel.receiving
    assert len(question) <= memory.used_bytes <= len(question) + LARGE_PIECE_BYTES
    session.writing_resumed()
    await running.until(lambda: channel.receiving)
    assert memory.used_bytes == 0
    (reply,) = channel.replies()
    assert [bytes(entry.value) for entry in reply.entries] == [b"v"] * 400
    session.writing_paused()
    await feed(session, channel, question)
    session.disconnected()
    await running.until(lambda: memory.used_bytes == 0)

"""Key-value tables over everything real but AWS: operations, conditions, iteration, restarts and repeats."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from real_cluster import RealCluster, WorkingQueue

from functions import wiring
from headrace import wire
from headrace.client import (
    AlreadyExistsError,
    ConflictError,
    Headrace,
    IllegalStateError,
    InvalidRequestError,
    KeyValueTable,
    NotFoundError,
    TableConfiguration,
    TableKey,
    UnavailableError,
    key_value_table,
)
from headrace.client.key_value_table import BATCH_KEYS_MAX, TableSegmentRequests
from headrace.model.limits import TABLE_VALUE_BYTES_MAX
from headrace.wire.connections.asynchronous import Flow, SingleReply

CONFIGURATION = TableConfiguration(partition_count=3, primary_key_length=4, secondary_key_length=2)
PRIMARIES = [b"%04d" % number for number in range(20)]


@pytest.fixture
def headrace(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """The requests on tables are processed."""
    monkeypatch.setattr(wiring, "table_queue", lambda: request_queue)
    return headrace


@pytest.fixture
def table(headrace: Headrace) -> Iterator[KeyValueTable]:
    headrace.admin.tables.create("shop", "stock", CONFIGURATION)
    with headrace.key_value_table("shop", "stock") as opened:
        yield opened


def test_administration(headrace: Headrace) -> None:
    tables = headrace.admin.tables
    created = tables.create("shop", "stock", CONFIGURATION)
    assert (created.state, created.configuration) == ("ACTIVE", CONFIGURATION)
    with pytest.raises(AlreadyExistsError):
        tables.create("shop", "stock", CONFIGURATION)
    assert tables.create("shop", "stock", TableConfiguration(1, 1), exist_ok=True) == created
    assert tables.get("shop", "stock") == created
    assert tables.list("shop") == ["stock"]
    assert tables.segments("shop", "stock").segments[0].name == "shop/stock_kvtable/0.#epoch.0"
    with pytest.raises(IllegalStateError):
        headrace.admin.delete_scope("shop")
    tables.delete("shop", "stock")
    with pytest.raises(NotFoundError):
        tables.get("shop", "stock")
    with pytest.raises(NotFoundError):
        headrace.key_value_table("shop", "stock")
    headrace.admin.delete_scope("shop")


def test_one_key(table: KeyValueTable) -> None:
    assert table.get(b"0001", b"aa") is None
    first = table.insert(b"0001", b"one", b"aa")
    with pytest.raises(AlreadyExistsError):
        table.insert(b"0001", b"two", b"aa")
    entry = table.get(b"0001", b"aa")
    assert entry is not None
    assert (entry.key, entry.value, entry.version) == (TableKey(b"0001", b"aa"), b"one", first)
    second = table.replace(b"0001", b"two", first, b"aa")
    with pytest.raises(ConflictError) as stale:
        table.replace(b"0001", b"three", first, b"aa")
    assert stale.value.specific_code == "table_key_version"
    third = table.put(b"0001", b"three", b"aa")
    assert len({first, second, third}) == 3
    with pytest.raises(ConflictError):
        table.remove(b"0001", b"aa", version=second)
    table.remove(b"0001", b"aa", version=third)
    assert table.get(b"0001", b"aa") is None
    table.remove(b"0001", b"aa")
    with pytest.raises(ConflictError):
        table.replace(b"0001", b"four", third, b"aa")


def test_a_batch_is_all_or_nothing(table: KeyValueTable) -> None:
    versions = table.update_all(b"0001", {b"aa": (b"1", -1), b"bb": (b"2", None)})
    with pytest.raises(ConflictError):
        table.update_all(b"0001", {b"aa": (b"9", versions[b"aa"]), b"bb": (b"9", -1), b"cc": (b"9", None)})
    assert [entry.value for entry in table.entries(primary=b"0001")] == [b"1", b"2"]
    with pytest.raises(ConflictError):
        table.remove_all(b"0001", {b"aa": None, b"bb": versions[b"bb"] + 1})
    table.remove_all(b"0001", {b"aa": None, b"bb": versions[b"bb"]})
    assert list(table.entries(primary=b"0001")) == []


def _fill(table: KeyValueTable) -> dict[TableKey, bytes]:
    wanted: dict[TableKey, bytes] = {}
    for primary in PRIMARIES:
        changes: dict[bytes, tuple[bytes, int | None]] = {
            secondary: (primary + secondary, -1) for secondary in (b"aa", b"mm", b"zz")
        }
        table.update_all(primary, changes)
        wanted |= {TableKey(primary, secondary): value for secondary, (value, _) in changes.items()}
    return wanted


@pytest.mark.parametrize("page", [1, 7, 1_000])
def test_iteration_is_in_order_of_the_keys_over_all_segments(table: KeyValueTable, page: int) -> None:
    wanted = sorted(_fill(table).items())
    assert [(entry.key, entry.value) for entry in table.entries(page=page)] == wanted
    versions = {entry.key: entry.version for entry in table.entries(page=page)}
    assert list(table.keys(page=page)) == [(key, versions[key]) for key, _ in wanted]
    some = [(key, value) for key, value in wanted if b"0003" <= key.primary <= b"0011"]
    assert [(entry.key, entry.value) for entry in table.entries(first=b"0003", last=b"0011", page=page)] == some
    of_one = [key for key, _ in table.keys(primary=b"0005", first=b"bb", last=b"zz", page=page)]
    assert of_one == [TableKey(b"0005", b"mm"), TableKey(b"0005", b"zz")]
    assert list(table.entries(primary=b"9999", page=page)) == []


def test_many_keys_come_in_the_order_asked(table: KeyValueTable) -> None:
    wanted = _fill(table)
    keys = list(wanted)
    random.Random(3).shuffle(keys)
    asked = [*keys, TableKey(b"none", b"xx"), keys[0]]
    entries = table.get_all(asked)
    assert [None if entry is None else entry.value for entry in entries] == [
        *(wanted[key] for key in keys),
        None,
        wanted[keys[0]],
    ]
    assert table.get_all([]) == []


def test_values_as_large_as_they_may_be(table: KeyValueTable) -> None:
    large = [bytes([number]) * TABLE_VALUE_BYTES_MAX for number in range(9)]
    for number, value in enumerate(large):
        table.put(b"0001", value, b"%02d" % number)
    entries = table.get_all([TableKey(b"0001", b"%02d" % number) for number in range(9)])
    assert [entry.value for entry in entries if entry is not None] == large
    assert [entry.value for entry in table.entries()] == large


@pytest.mark.parametrize(
    "wrong",
    [
        lambda table: table.get(b"1", b"aa"),
        lambda table: table.get(b"0001", b"a"),
        lambda table: table.get(b"0001"),
        lambda table: table.get("0001", b"aa"),
        lambda table: table.put(b"0001", "text", b"aa"),
        lambda table: table.put(b"0001", bytes(TABLE_VALUE_BYTES_MAX + 1), b"aa"),
        lambda table: table.replace(b"0001", b"", -1, b"aa"),
        lambda table: table.update_all(b"0001", {}),
        lambda table: table.remove_all(b"0001", {}),
        lambda table: table.remove_all(b"0001", dict.fromkeys((b"%02x" % n for n in range(BATCH_KEYS_MAX + 1)), None)),
        lambda table: table.update_all(
            b"0001", {b"%02d" % number: (bytes(TABLE_VALUE_BYTES_MAX), None) for number in range(17)}
        ),
        lambda table: list(table.entries(primary=b"0001", first=b"a")),
        lambda table: list(table.entries(first=b"1")),
    ],
)
def test_what_is_refused(table: KeyValueTable, wrong: Callable[[KeyValueTable], object]) -> None:
    with pytest.raises(InvalidRequestError):
        wrong(table)
    assert list(table.keys()) == []


def test_entries_outlive_a_restart_and_lost_connections(real: RealCluster, table: KeyValueTable) -> None:
    wanted = _fill(table)
    real.kill_store()
    real.start_store()
    assert {entry.key: entry.value for entry in table.entries()} == wanted
    real.drop_connections()
    assert table.get(b"0001", b"aa") is not None


def test_requests_wait_while_a_container_moves(table: KeyValueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not own the container refuses them at once, and has not carried them out."""
    refused: list[wire.WireCommand] = []

    class MovingStore(SingleReply):
        def ask(self, flow: Flow, command: wire.WireCommand) -> asyncio.Future[wire.WireCommand]:
            if len(refused) == 4:
                return super().ask(flow, command)
            refused.append(command)
            waiting: asyncio.Future[wire.WireCommand] = asyncio.get_running_loop().create_future()
            waiting.set_result(wire.WrongHost(1, "shop/stock_kvtable/0.#epoch.0"))
            return waiting

    monkeypatch.setattr(key_value_table, "SingleReply", MovingStore)
    version = table.insert(b"0001", b"one", b"aa")
    entry = table.get(b"0001", b"aa")
    assert entry is not None
    assert entry.version == version
    assert len(refused) == 4


def test_recreated_table_is_another_table(headrace: Headrace, table: KeyValueTable) -> None:
    table.put(b"0001", b"one", b"aa")
    headrace.admin.tables.delete("shop", "stock")
    headrace.admin.tables.create("shop", "stock", CONFIGURATION)
    with pytest.raises(NotFoundError):
        table.get(b"0001", b"aa")
    with headrace.key_value_table("shop", "stock") as recreated:
        assert list(recreated.keys()) == []


OPERATIONS: dict[str, Callable[[KeyValueTable, int], object]] = {
    "insert": lambda table, _: table.insert(b"0002", b"new", b"aa"),
    "replace": lambda table, version: table.replace(b"0001", b"new", version, b"aa"),
    "put": lambda table, _: table.put(b"0001", b"new", b"aa"),
    "remove": lambda table, version: table.remove(b"0001", b"aa", version=version),
}


def _lose_first_answer(monkeypatch: pytest.MonkeyPatch, *, carried_out: bool) -> None:
    """The first request that changes something is cut off: before it is sent, or before its answer is heard."""
    attempt = TableSegmentRequests._try
    lost = []

    async def cut_off(self: Any, segment: int, make: Any, expected: Any, attempts: Any) -> Any:
        if attempts is None or lost:
            return await attempt(self, segment, make, expected, attempts)
        lost.append(expected)
        if carried_out:
            await attempt(self, segment, make, expected, attempts)
        attempts.answer_lost = True
        raise UnavailableError("the connection was lost")

    monkeypatch.setattr(TableSegmentRequests, "_try", cut_off)


@pytest.mark.parametrize(("name", "carried_out"), list(product(OPERATIONS, [False, True])))
def test_a_lost_answer_is_made_good(
    table: KeyValueTable, monkeypatch: pytest.MonkeyPatch, name: str, carried_out: bool
) -> None:
    version = table.put(b"0001", b"old", b"aa")
    _lose_first_answer(monkeypatch, carried_out=carried_out)
    answer = OPERATIONS[name](table, version)
    entry = table.get(b"0002" if name == "insert" else b"0001", b"aa")
    if name == "remove":
        assert entry is None
    else:
        assert entry is not None
        assert (entry.value, entry.version) == (b"new", answer)


def test_a_request_that_was_not_sent_has_no_lost_answer(
    headrace: Headrace, table: KeyValueTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delegation token for it could not be fetched. An equal value in the table is not its own then."""
    table.put(PRIMARIES[0], b"taken", b"aa")
    tokens, left = headrace._core.admin.delegation_tokens, [None]
    monkeypatch.setattr(tokens, "ready", lambda command: left.pop() if left else command)

    async def attached(command: wire.WireCommand) -> wire.WireCommand:
        raise UnavailableError("the controller has not issued a token in time")

    monkeypatch.setattr(tokens, "attached", attached)
    with pytest.raises(AlreadyExistsError):
        table.insert(PRIMARIES[0], b"taken", b"aa")
    assert not left


def test_a_conflict_after_a_lost_answer_is_still_one(table: KeyValueTable, monkeypatch: pytest.MonkeyPatch) -> None:
    version = table.put(b"0001", b"old", b"aa")
    table.put(b"0001", b"of another writer", b"aa")
    _lose_first_answer(monkeypatch, carried_out=False)
    with pytest.raises(ConflictError):
        table.replace(b"0001", b"mine", version, b"aa")
    with pytest.raises(ConflictError):
        table.remove(b"0001", b"aa", version=version)


def test_the_client_speaks_of_versions_as_the_wire_does() -> None:
    assert wire.NOT_EXISTS == -1

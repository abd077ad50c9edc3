"""Calls with arguments of other types or values: each is refused before anything happens, in one form of message."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import numpy as np
import pytest
from scripted_cluster import Cluster
from scripted_transactions import Transactions

from headrace import client as public
from headrace.client import (
    AsyncHeadrace,
    GroupReaderOptions,
    GroupStream,
    Headrace,
    HeadraceError,
    InvalidRequestError,
    KeyRange,
    ReaderGroupConfiguration,
    ReaderOptions,
    ReadOrder,
    RetentionPolicy,
    ScalingPolicy,
    StreamCut,
    TableConfiguration,
    WriterOptions,
    connect,
)
from headrace.client.administration import admin as admin_module
from headrace.model import arguments

NAN = float("nan")
NAIVE = datetime(2020, 1, 1)  # noqa: DTZ001 - a time that names no moment
WRONG: tuple[Any, ...] = (
    None,
    5,
    -1,
    1.5,
    NAN,
    True,
    "x",
    b"x",
    [],
    [5],
    {},
    {5: "x"},
    object(),
    int,
    NAIVE,
)
ADMINS = {type(part) for part in vars(admin_module.AsyncAdmin(None)).values()}  # type: ignore[arg-type]
CLASSES = [
    admin_module.AsyncAdmin,
    *sorted((kind for kind in ADMINS if kind.__name__.startswith("Async")), key=lambda kind: kind.__name__),
    Headrace,
    *(getattr(public, name) for name in public.__all__ if name.startswith("Async")),
]


def checked_methods() -> Iterator[tuple[type, str, Any]]:
    for kind in CLASSES:
        for name, member in vars(kind).items():
            if inspect.isfunction(member) and hasattr(member, "__wrapped__"):
                yield kind, name, member


def cases() -> Iterator[Any]:
    for kind, name, member in checked_methods():
        original = member.__wrapped__
        for parameter in list(inspect.signature(original).parameters.values())[1:]:
            hint = arguments._hint(original, parameter.name)
            if hint is None:
                continue
            for value in WRONG:
                if not arguments._accepts(hint, value):
                    shown = f"{kind.__name__}.{name}({parameter.name}={value!r:.12})"
                    yield pytest.param(kind, member, parameter.name, value, id=shown)


CASES = list(cases())


def test_public_calls_are_checked():
    methods = {f"{kind.__name__}.{name}" for kind, name, _ in checked_methods()}
    assert {"AsyncAdmin.scale_stream", "AsyncReaderGroup.reset", "Headrace.reader"} <= methods
    assert len(CASES) > 1_000


def test_each_argument_of_another_type_is_refused():
    """On an object without any state: nothing else happens before."""

    async def call(kind: type, member: Any, parameter: str, value: Any) -> None:
        made = member(object.__new__(kind), **{parameter: value})
        if inspect.isawaitable(made):
            await made

    async def main() -> None:
        for case in CASES:
            kind, member, parameter, value = case.values
            with pytest.raises(InvalidRequestError) as refused:
                await call(kind, member, parameter, value)
            assert refused.value.specific_code == "invalid_argument", case.id
            assert f"{parameter} is " in refused.value.message
            assert ", but must be " in refused.value.message or "from 0 on" in refused.value.message

    asyncio.run(main())


@pytest.fixture
def headrace(cluster: Cluster) -> Iterator[Headrace]:
    transport = httpx.MockTransport(Transactions(cluster).handle)
    with connect("http://controller", transport=transport, retry_s=1.0) as client:
        yield client


REFUSED: list[Callable[[Headrace], object]] = [
    lambda client: client.writer("s", "t", 5),  # type: ignore[arg-type]
    lambda client: client.writer(5, "t"),  # type: ignore[arg-type]
    lambda client: client.writer("s", "t").write(b"x", 5),  # type: ignore[arg-type]
    lambda client: client.writer("s", "t").write(b"x", b"key"),  # type: ignore[arg-type]
    lambda client: client.writer("s", "t").write(b"x", ["key"]),  # type: ignore[arg-type]
    lambda client: client.writer("s", "t").write("x"),  # type: ignore[arg-type]
    lambda client: client.writer("s", "t").write_batch([b"x"], [5]),  # type: ignore[list-item]
    lambda client: client.writer("s", "t").write_batch([b"x"], 5),  # type: ignore[arg-type]
    lambda client: client.writer("s", "t").write_batch([b"x"], iter(["k"])),  # type: ignore[arg-type]
    lambda client: client.writer("s", "t").write_batch([b"x"], [["k"]]),  # type: ignore[list-item]
    lambda client: client.writer("s", "t").write_batch(5),  # type: ignore[arg-type]
    lambda client: client.writer("s", "t").write_batch({b"x": 1}),
    lambda client: client.writer("s", "t").write_batch("abc"),  # type: ignore[arg-type]
    lambda client: client.writer("s", "t").flush(-1),
    lambda client: client.writer("s", "t").flush(NAN),
    lambda client: client.writer("s", "t").flush("1"),  # type: ignore[arg-type]
    lambda client: client.writer("s", "t").write(b"x").result(-1),
    lambda client: client.transactional_writer("s", "t").begin().write(b"x", 5),  # type: ignore[arg-type]
    lambda client: client.transactional_writer("s", "t").begin().flush(-1),
    lambda client: client.transactional_writer("s", "t").begin().commit(time="now"),  # type: ignore[arg-type]
    lambda client: client.transactional_writer("s", "t").transaction(5),  # type: ignore[arg-type]
    lambda client: client.transactional_writer("s", "t", lease_ms=NAN),  # type: ignore[arg-type]
    lambda client: client.reader("s", "t", 5),  # type: ignore[arg-type]
    lambda client: client.reader("s", "t", "yesterday"),  # type: ignore[arg-type]
    lambda client: client.reader("s", "t", NAIVE),
    lambda client: client.reader("s", "t", end=5),  # type: ignore[arg-type]
    lambda client: client.reader("s", "t").read_batch(-1),
    lambda client: client.reader("s", "t").read_batch("1"),  # type: ignore[arg-type]
    lambda client: client.reader("s", "t").read_arrow_batch(NAN),
    lambda client: client.admin.stream_cut("s", "t", at=5),  # type: ignore[arg-type]
    lambda client: client.admin.scale_stream("s", "t", seal=[0, 0], ranges=[(0.0, 1.0)]),
    lambda client: client.admin.scale_stream("s", "t", seal=[0], ranges=[(NAN, 1.0)]),
    lambda client: client.admin.scale_stream("s", "t", seal=0, ranges=[(0.0, 1.0)]),  # type: ignore[arg-type]
    lambda client: client.admin.scale_stream("s", "t", seal=[0], ranges=[0.5]),  # type: ignore[list-item]
    lambda client: client.admin.scale_stream("s", "t", seal=[0], ranges=[(0.0, float("inf"))]),
    lambda client: client.admin.transactions.create("s", "t", lease_ms=10_000, label="\ud800"),
    lambda client: client.writer("s", "t").flush(10**400),
    lambda client: client.reader("s", "t").read_batch(10**400),
    lambda client: client.admin.create_stream("s", "t", tags="abc"),
    lambda client: client.admin.get_stream("s", 5),  # type: ignore[arg-type]
    lambda client: client.admin.transactions.get("s", "t", 5),  # type: ignore[arg-type]
    lambda client: client.reader_group("s", None),  # type: ignore[arg-type]
    lambda client: client.range_reader("s/t"),  # type: ignore[arg-type]
    lambda _: ReaderOptions(on_truncation="skp"),  # type: ignore[arg-type]
    lambda _: ReaderOptions(order="time"),  # type: ignore[arg-type]
    lambda _: ReaderOptions(give_up_after_s=-1),
    lambda _: ReaderOptions(time_resolution_s=NAN),
    lambda _: WriterOptions(give_up_after_s=NAN),
    lambda _: WriterOptions(block_bytes="1"),  # type: ignore[arg-type]
    lambda _: WriterOptions(writer_id=5),  # type: ignore[arg-type]
    lambda _: GroupReaderOptions(lease_s="1"),  # type: ignore[arg-type]
    lambda _: GroupReaderOptions(reading="skip"),  # type: ignore[arg-type]
    lambda _: KeyRange("a", 1.0),  # type: ignore[arg-type]
    lambda _: KeyRange(NAN, 1.0),
    lambda _: StreamCut.of("s", "t", 5),  # type: ignore[arg-type]
    lambda _: StreamCut.of("s", "t", {"a": 1}),  # type: ignore[dict-item]
    lambda _: StreamCut.of("s", "t", {0: NAN}),  # type: ignore[dict-item]
    lambda _: ScalingPolicy.fixed("2"),  # type: ignore[arg-type]
    lambda _: ScalingPolicy.fixed(NAN),  # type: ignore[arg-type]
    lambda _: RetentionPolicy("time", 5),  # type: ignore[arg-type]
    lambda _: RetentionPolicy.by_time("1 day"),  # type: ignore[arg-type]
    lambda _: GroupStream("s", 5),  # type: ignore[arg-type]
    lambda _: GroupStream("s", "t", "head"),  # type: ignore[arg-type]
    lambda _: ReaderGroupConfiguration("s/t"),  # type: ignore[arg-type]
    lambda _: ReaderGroupConfiguration(("s/t",)),  # type: ignore[arg-type]
    lambda _: TableConfiguration("1", 8),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("call", REFUSED, ids=range(len(REFUSED)))
def test_nonsense_is_refused(headrace: Headrace, call: Callable[[Headrace], object]):
    with pytest.raises(InvalidRequestError):
        call(headrace)


@pytest.mark.parametrize(
    "url",
    [5, b"http://h", "", "localhost:10080", "ftp://h", "http://", "http://:80", "http://h:x", "http://h:99999",
     "http://[", "http://h:0", "http://h\n", "http://h?x=1", "http://h#x"],
)  # fmt: skip
def test_bad_addresses_are_refused(url: Any):
    for make in (connect, Headrace, AsyncHeadrace):
        with pytest.raises(InvalidRequestError):
            make(url)
    with pytest.raises(HeadraceError):
        connect("http://h", retry_s=-1.0)


def test_a_reader_starts_at_a_time(headrace: Headrace, cluster: Cluster):
    cluster.put(0, b"event")
    with headrace.reader("s", "t", datetime(2020, 1, 1, tzinfo=UTC)) as reader:
        batch = reader.read_batch(10)
    assert batch is not None
    assert batch.events == [b"event"]


def test_right_arguments_are_accepted(headrace: Headrace):
    ReaderOptions(on_truncation="skip", order=ReadOrder.TIME, time_resolution_s=0)
    with headrace.writer("s", "t", WriterOptions(give_up_after_s=5)) as writer:
        writer.write_batch((event for event in [b"x"]), ("k",)).result(30)
        writer.flush(30)


def test_numbers_and_arrays_of_numpy_are_accepted(headrace: Headrace, cluster: Cluster):
    with headrace.writer("s", "t") as writer:
        writer.write_batch([b"x", b"y"], np.array(["k", "k"])).result(30)  # type: ignore[arg-type]
    assert cluster.all_events() == [b"x", b"y"]
    with pytest.raises(AssertionError, match="scale"):  # the request arrives: the double knows no such route
        headrace.admin.scale_stream("s", "t", seal=[np.int64(0)], ranges=[(np.float64(0), 1.0)])  # type: ignore[list-item]


def test_writers_accept_integers_of_numpy(headrace: Headrace, cluster: Cluster):
    options = WriterOptions(block_bytes=np.int64(1_000), buffer_bytes=np.int32(2_000))  # type: ignore[arg-type]
    with headrace.writer("s", "t", options) as writer:
        writer.write(b"x")
        writer.flush(np.int64(30))  # type: ignore[arg-type]
    assert cluster.all_events() == [b"x"]
    with headrace.transactional_writer("s", "t", options) as transactions, transactions.begin() as transaction:
        transaction.write(b"y")
        transaction.flush(np.uint8(30))


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e300, 10**30])
def test_a_wait_may_be_endless(headrace: Headrace, cluster: Cluster, timeout_s: float):
    answers = threading.Event()
    cluster.before_append = lambda _: not answers.wait(30)
    with headrace.writer("s", "t") as writer:
        ack = writer.write(b"x")
        later = threading.Timer(0.05, answers.set)
        later.start()
        ack.result(timeout_s)
        writer.flush(timeout_s)
        later.join()

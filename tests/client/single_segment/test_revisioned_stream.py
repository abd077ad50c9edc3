"""Revisioned streams and state synchronizers over everything real but AWS."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from real_cluster import RealCluster

from headrace import wire
from headrace.client import (
    CorruptError,
    Headrace,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    RevisionedEntry,
    RevisionedStream,
    ScalingPolicy,
    SealedError,
    StateForm,
    StateSynchronizer,
    TruncatedError,
)
from headrace.client.single_segment.revisioned_stream import AsyncRevisionedStream


@pytest.fixture
def entries(headrace: Headrace) -> RevisionedStream:
    """An empty stream of one segment."""
    headrace.admin.create_stream("shop", "prices", scaling=ScalingPolicy.fixed(1))
    return headrace.revisioned_stream("shop", "prices")


def test_entries_come_back_with_their_revisions(entries: RevisionedStream) -> None:
    assert list(entries.read(0)) == []
    entries.write(b"first")
    after = entries.latest_revision()
    assert after == 8 + 5
    second = entries.write_conditionally(after, b"second!")
    assert second == after + 8 + 7
    assert list(entries.read(0)) == [RevisionedEntry(after, b"first"), RevisionedEntry(second, b"second!")]
    assert list(entries.read(after)) == [RevisionedEntry(second, b"second!")]
    assert list(entries.read(0, after)) == [RevisionedEntry(after, b"first")]
    assert list(entries.read(second)) == []


def test_entries_have_the_times_at_which_they_were_stored(entries: RevisionedStream) -> None:
    revisions = [entries.write_conditionally(entries.latest_revision(), value) or 0 for value in (b"first", b"second")]
    first, second = map(entries.time_of, revisions)
    assert first is not None
    assert second is not None
    assert first <= second
    for wrong in (0, revisions[-1] + 1):
        with pytest.raises(InvalidRequestError):
            entries.time_of(wrong)
    entries.truncate(revisions[0])
    assert entries.time_of(revisions[1]) == second
    with pytest.raises(TruncatedError):
        entries.time_of(revisions[0])


def test_conditional_write_at_an_older_revision(entries: RevisionedStream) -> None:
    entries.write(b"first")
    assert entries.write_conditionally(0, b"late") is None
    assert [entry.value for entry in entries.read(0)] == [b"first"]
    assert entries.write_conditionally(entries.latest_revision(), b"in time") is not None


def test_pages_of_a_long_stream(entries: RevisionedStream) -> None:
    values = [b"x" * size for size in (1, 5_000, 700_000, 900_000, 2_000_000, 3)]
    for value in values:
        entries.write(value)
    assert [entry.value for entry in entries.read(0, page=2)] == values


def test_truncated_entries(entries: RevisionedStream) -> None:
    entries.write(b"first")
    after = entries.latest_revision()
    entries.write(b"second")
    entries.truncate(after)
    entries.truncate(0)  # what is removed stays removed
    assert entries.oldest_revision() == after
    with pytest.raises(TruncatedError):
        list(entries.read(0))
    assert [entry.value for entry in entries.read(after)] == [b"second"]


def test_mark(entries: RevisionedStream) -> None:
    assert entries.mark() is None
    assert entries.compare_and_set_mark(None, 13)
    assert not entries.compare_and_set_mark(None, 26)
    assert entries.mark() == 13
    assert entries.compare_and_set_mark(13, None)
    assert entries.mark() is None


def test_waiting_reader_gets_the_next_entry(entries: RevisionedStream, headrace: Headrace) -> None:
    found: list[RevisionedEntry] = []
    waiting = threading.Thread(target=lambda: found.extend(entries.read_after(0)))
    waiting.start()
    headrace.revisioned_stream("shop", "prices").write(b"news")
    waiting.join()
    assert found == [RevisionedEntry(12, b"news")]


@pytest.mark.parametrize("conditional", [True, False])
def test_entry_whose_answer_is_lost_is_stored_once(
    entries: RevisionedStream, real: RealCluster, monkeypatch: pytest.MonkeyPatch, conditional: bool
) -> None:
    """The store drops the connection after it has stored the entry, and before its answer."""
    entries.write(b"first")
    lost: list[wire.WireCommand] = []
    original = AsyncRevisionedStream._try_append

    async def try_append(stream: AsyncRevisionedStream, make: Callable[[int, int], wire.WireCommand]) -> bool:
        done = await original(stream, make)
        if not lost:
            lost.append(make(0, 0))
            real.thread.run(real._drop_connections())
            raise wire.error_of_reply(wire.WrongHost(0, "shop/prices/0.#epoch.0"))
        return done

    monkeypatch.setattr(AsyncRevisionedStream, "_try_append", try_append)
    if conditional:
        assert entries.write_conditionally(13, b"second") == 27
    else:
        entries.write(b"second")
    assert len(lost) == 1
    assert [entry.value for entry in entries.read(0)] == [b"first", b"second"]


def test_entries_survive_a_killed_store(entries: RevisionedStream, real: RealCluster) -> None:
    entries.write(b"first")
    real.kill_store()
    real.start_store()
    assert entries.write_conditionally(13, b"second") == 27
    assert [entry.value for entry in entries.read(0)] == [b"first", b"second"]


def test_requests_that_are_refused(entries: RevisionedStream, headrace: Headrace) -> None:
    with pytest.raises(InvalidRequestError) as large:
        entries.write(bytes(8 * 1024 * 1024 + 1))
    assert large.value.specific_code == "event_too_large"
    with pytest.raises(InvalidRequestError):
        list(entries.read(5, 3))
    headrace.admin.create_stream("shop", "wide", scaling=ScalingPolicy.fixed(2))
    with pytest.raises(InvalidRequestError) as wide:
        headrace.revisioned_stream("shop", "wide")
    assert wide.value.specific_code == "not_one_segment"
    with pytest.raises(NotFoundError):
        headrace.revisioned_stream("shop", "nowhere")
    headrace.admin.seal_stream("shop", "prices")
    with pytest.raises(SealedError):
        entries.write(b"too late")
    headrace.admin.delete_stream("shop", "prices")
    for call in (lambda: list(entries.read(0)), entries.mark, lambda: entries.truncate(0), entries.oldest_revision):
        with pytest.raises(NotFoundError, match=r"^stream shop/prices was deleted$") as caught:
            call()
        assert isinstance(caught.value.__cause__, NotFoundError)
        assert caught.value.specific_code == caught.value.__cause__.specific_code
        assert caught.value.details == caught.value.__cause__.details


# State synchronizers


@dataclass(frozen=True)
class Prices:
    """A state of a user: a price by name."""

    by_name: dict[str, int] = field(default_factory=dict)


def _apply(prices: Prices, update: tuple[str, int]) -> Prices:
    name, price = update
    if price < 0:
        raise IllegalStateError("a price is not negative")
    return Prices({**prices.by_name, name: price})


def _state_bytes(prices: Prices) -> bytes:
    return ",".join(f"{name}={price}" for name, price in prices.by_name.items()).encode()


def _parse_state(data: bytes | memoryview) -> Prices:
    pairs = [pair.split("=") for pair in bytes(data).decode().split(",") if pair]
    return Prices({name: int(price) for name, price in pairs})


def _update_bytes(update: tuple[str, int]) -> bytes:
    return f"{update[0]}={update[1]}".encode()


def _parse_update(data: bytes | memoryview) -> tuple[str, int]:
    name, _, price = bytes(data).decode().partition("=")
    if not price:
        raise CorruptError("an update has no price")
    return name, int(price)


FORM = StateForm(_apply, _state_bytes, _parse_state, _update_bytes, _parse_update)
Synchronizer = StateSynchronizer[Prices, tuple[str, int]]


@pytest.fixture
def first(entries: RevisionedStream, headrace: Headrace) -> Synchronizer:
    return headrace.state_synchronizer("shop", "prices", FORM)


@pytest.fixture
def second(first: Synchronizer, headrace: Headrace) -> Synchronizer:
    """Another process with the same state, which the first one has initialized."""
    assert first.initialize(Prices({"tea": 1}))
    return headrace.state_synchronizer("shop", "prices", FORM)


def test_two_processes_share_a_state(first: Synchronizer, second: Synchronizer) -> None:
    assert not second.initialize(Prices())
    assert second.state == Prices({"tea": 1})
    assert first.update(lambda prices: [("tea", 2), ("nut", 3)]) == (("tea", 2), ("nut", 3))
    assert second.update(lambda prices: [("nut", prices.by_name.get("nut", 0) + 1)]) == (("nut", 4),)
    assert first.fetch() == second.state == Prices({"tea": 2, "nut": 4})
    first.update_unconditionally([("fig", 7)])
    assert second.fetch() == Prices({"tea": 2, "nut": 4, "fig": 7})
    assert first.update(lambda prices: []) == ()


def test_decision_is_made_again_for_a_newer_state(first: Synchronizer, second: Synchronizer) -> None:
    seen: list[int] = []

    def raise_by_one(prices: Prices) -> list[tuple[str, int]]:
        seen.append(prices.by_name["tea"])
        return [("tea", prices.by_name["tea"] + 1)]

    second.update(raise_by_one)
    first.update(raise_by_one)
    assert seen == [1, 1, 2]
    assert first.state == Prices({"tea": 3})


def test_state_before_it_is_initialized(first: Synchronizer) -> None:
    assert first.state is None
    with pytest.raises(IllegalStateError) as missing:
        first.update(lambda prices: [("tea", 1)])
    assert missing.value.specific_code == "state_not_initialized"
    with pytest.raises(IllegalStateError):
        first.compact()


def test_compacted_state(first: Synchronizer, second: Synchronizer, entries: RevisionedStream) -> None:
    for price in range(10):
        first.update(lambda prices, price=price: [("tea", price)])  # type: ignore[misc]
    first.compact()
    mark = entries.mark()
    assert mark is not None
    assert entries.oldest_revision() == 0  # a copy may still be older than the first state that is a whole
    first.update(lambda prices: [("nut", 5)])
    assert 0 < first.bytes_since_compaction() < mark
    first.compact()
    assert entries.oldest_revision() == mark
    assert second.fetch() == first.state == Prices({"tea": 9, "nut": 5})
    first.update(lambda prices: [("fig", 1)])
    first.compact()
    assert second.fetch() == Prices({"tea": 9, "nut": 5, "fig": 1})


def test_waiting_copy_is_brought_up_to_date(first: Synchronizer, second: Synchronizer) -> None:
    waiting = threading.Thread(target=second.wait)
    waiting.start()
    first.update(lambda prices: [("tea", 9)])
    waiting.join()
    assert second.state == Prices({"tea": 9})


@pytest.mark.parametrize("value", [b"", b"\0\0\0\1", b"\0\0\0\2\0\0\0\4tea=", b"\0\0\0\2\0\0\0\6tea=-1", b"\0\0\0\7"])
def test_entries_that_are_no_updates(second: Synchronizer, entries: RevisionedStream, value: bytes) -> None:
    entries.write(value)
    if value == b"\0\0\0\1":
        assert second.fetch() == Prices()  # the stored form of an empty state
        return
    with pytest.raises(CorruptError):
        second.fetch()


def test_stream_with_updates_but_no_state(entries: RevisionedStream, headrace: Headrace) -> None:
    entries.write(b"\0\0\0\2")
    with pytest.raises(CorruptError):
        headrace.state_synchronizer("shop", "prices", FORM)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import wire
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.tcp.segment_stores import TcpSegmentStores
from headrace.adapters.tcp.store_calls import StoreAddress
from headrace.model import errors
from headrace.ports.clock import time_limit
from headrace.ports.segment_stores import SegmentInfo, SegmentScaleRate

MakeStore = Callable[..., Any]
NAME = "s/t/0.#epoch.0"


def _succeed(command: Any) -> wire.WireCommand:
    match command:
        case wire.CreateSegment():
            return wire.SegmentCreated(command.request_id, command.segment)
        case wire.SealSegment():
            return wire.SegmentSealed(command.request_id, command.segment)
        case wire.TruncateSegment():
            return wire.SegmentTruncated(command.request_id, command.segment)
        case wire.DeleteSegment():
            return wire.SegmentDeleted(command.request_id, command.segment)
        case wire.GetStreamSegmentInfo():
            number = int(command.segment.split("/")[2].partition(".")[0])
            return wire.StreamSegmentInfo(command.request_id, command.segment, True, False, False, 5, number + 10, 3)
    raise AssertionError(command)


def _stores(*scripted: Any, **options: Any) -> TcpSegmentStores:
    """Container c lives on store c modulo their number."""

    def locate(container: int) -> StoreAddress:
        store = scripted[container % len(scripted)]
        return StoreAddress(store.host, store.port, 1)

    return TcpSegmentStores(locate, 8, **{"sleep": lambda _: None, **options})


def test_each_operation_sends_its_command(scripted_store: MakeStore) -> None:
    store = scripted_store(_succeed)
    stores = _stores(store)
    stores.create_segment(NAME, SegmentScaleRate(2, 100), 77)
    stores.seal_segment(NAME)
    stores.truncate_segment(NAME, 9)
    stores.delete_segment(NAME)
    assert stores.segment_info(NAME) == SegmentInfo(NAME, 3, 10, False, 5)
    stores.close()
    assert store.requests == [
        wire.CreateSegment(1, NAME, 100, 2, "", 77),
        wire.SealSegment(2, NAME),
        wire.TruncateSegment(3, NAME, 9),
        wire.DeleteSegment(4, NAME),
        wire.GetStreamSegmentInfo(5, NAME),
    ]
    assert store.connections == 1


def test_many_infos_go_to_their_stores_over_one_connection_each(scripted_store: MakeStore) -> None:
    first, second = scripted_store(_succeed), scripted_store(_succeed)
    stores = _stores(first, second)
    names = [f"s/t/{number}.#epoch.0" for number in range(300)]
    infos = stores.segment_infos(names)
    stores.close()
    assert [info.name for info in infos] == names
    assert [info.length for info in infos] == [number + 10 for number in range(300)]
    assert len(first.requests) + len(second.requests) == 300
    assert first.requests
    assert second.requests
    assert (first.connections, second.connections) == (1, 1)


def test_repeating_what_is_done_succeeds(scripted_store: MakeStore) -> None:
    done = {
        wire.CreateSegment: wire.SegmentAlreadyExists,
        wire.SealSegment: wire.SegmentIsSealed,
        wire.DeleteSegment: wire.NoSuchSegment,
    }
    store = scripted_store(lambda command: done[type(command)](command.request_id, command.segment))
    stores = _stores(store)
    stores.create_segment(NAME, SegmentScaleRate())
    stores.seal_segment(NAME)
    stores.delete_segment(NAME)
    stores.close()


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (wire.NoSuchSegment(1, NAME), errors.NotFoundError),
        (wire.ErrorMessage(1, NAME, "bad", wire.ERROR_CODE_ILLEGAL_ARGUMENT), errors.InvalidRequestError),
        (wire.OperationUnsupported(1, "info"), errors.InvalidRequestError),
        (wire.SegmentSealed(1, NAME), errors.CorruptError),
        (wire.StreamSegmentInfo(1, NAME, False, True, True, 0, 0, 0), errors.NotFoundError),
    ],
)
def test_error_replies(scripted_store: MakeStore, reply: wire.WireCommand, kind: type[errors.HeadraceError]) -> None:
    stores = _stores(scripted_store(lambda _: reply))
    with pytest.raises(kind):
        stores.segment_info(NAME)
    stores.close()


def test_truncating_beyond_the_end(scripted_store: MakeStore) -> None:
    stores = _stores(scripted_store(lambda command: wire.SegmentIsTruncated(command.request_id, command.segment, 9)))
    with pytest.raises(errors.InvalidRequestError, match="beyond its end"):
        stores.truncate_segment(NAME, 9)
    stores.close()


def test_wrong_host_is_followed(scripted_store: MakeStore) -> None:
    old = scripted_store(lambda command: wire.WrongHost(command.request_id, command.segment))
    new = scripted_store(_succeed)
    asked: list[int] = []

    def locate(container: int) -> StoreAddress:
        asked.append(container)
        owner = old if len(asked) == 1 else new
        return StoreAddress(owner.host, owner.port, len(asked))

    stores = TcpSegmentStores(locate, 8, sleep=lambda _: None)
    stores.seal_segment(NAME)
    stores.close()
    assert len(asked) == 2
    assert len(old.requests) == 1
    assert len(new.requests) == 1


def test_a_restarted_store_gets_a_new_connection(scripted_store: MakeStore) -> None:
    """The old connection leads to what is left of the old store; the address is the same."""
    store = scripted_store(_succeed)
    store.answer = lambda command: (
        wire.WrongHost(command.request_id, command.segment) if store.connections == 1 else _succeed(command)
    )
    stores = _stores(store)
    stores.seal_segment(NAME)
    stores.close()
    assert store.connections == 2


def test_a_container_that_is_not_ready_yet_is_asked_again(scripted_store: MakeStore) -> None:
    replies = iter([wire.ErrorMessage(1, NAME, "recovering"), wire.SegmentSealed(2, NAME)])
    stores = _stores(scripted_store(lambda _: next(replies)))
    stores.seal_segment(NAME)
    stores.close()


def test_dropped_connections_are_opened_again(scripted_store: MakeStore) -> None:
    store = scripted_store(_succeed)
    stores = _stores(store)
    for _ in range(3):
        stores.seal_segment(NAME)
        store.drop_connections()
    stores.close()
    assert store.connections == 3


def test_a_request_is_repeated_when_the_store_dies(scripted_store: MakeStore) -> None:
    drops = iter([True, True, False])
    store = scripted_store(lambda command: None if next(drops) else _succeed(command))
    stores = _stores(store)
    stores.seal_segment(NAME)
    stores.close()
    assert store.connections == 3


def test_a_store_that_comes_back_within_the_deadline(scripted_store: MakeStore) -> None:
    running: list[Any] = []
    waits: list[float] = []

    def locate(_: int) -> StoreAddress:
        if not running:
            raise errors.UnavailableError("nobody claimed it")
        return StoreAddress(running[0].host, running[0].port, 1)

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            running.append(scripted_store(_succeed))

    stores = TcpSegmentStores(locate, 8, sleep=sleep, jitter=lambda: 1.0)
    stores.seal_segment(NAME)
    stores.close()
    assert waits == [0.04, 0.08, 0.16]


def test_after_the_deadline_the_error_says_what_the_problem_was(scripted_store: MakeStore) -> None:
    store = scripted_store(_succeed)
    store.close()
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    stores = _stores(store, deadline_s=3.0, sleep=sleep, monotonic_s=lambda: now[0], jitter=lambda: 1.0)
    with pytest.raises(errors.UnavailableError, match=r"no answer for segment .* within 3 s.*cannot be reached"):
        stores.seal_segment(NAME)
    assert now[0] < 3.0


@pytest.mark.parametrize(
    ("hello", "message"),
    [
        (wire.Hello(30, 18), "versions 18 to 30"),
        (wire.Hello(4, 1), "versions 1 to 4"),
        (wire.SegmentSealed(1, NAME), "is this a segment store"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "claims"),
    ],
)
def test_a_peer_of_another_kind(scripted_store: MakeStore, hello: Any, message: str) -> None:
    stores = _stores(scripted_store(_succeed, hello=hello))
    with pytest.raises(errors.CorruptError, match=message):
        stores.seal_segment(NAME)
    stores.close()


def test_an_answer_to_a_request_that_nobody_made(scripted_store: MakeStore) -> None:
    stores = _stores(scripted_store(lambda command: wire.SegmentSealed(command.request_id + 5, NAME)))
    with pytest.raises(errors.CorruptError, match="not waiting"):
        stores.seal_segment(NAME)
    stores.close()


def test_an_idle_connection_is_not_trusted(scripted_store: MakeStore) -> None:
    store = scripted_store(_succeed)
    now = [0.0]
    stores = _stores(store, monotonic_s=lambda: now[0])
    stores.seal_segment(NAME)
    now[0] += 61.0
    stores.seal_segment(NAME)
    stores.close()
    assert store.connections == 2


def test_the_deadline_of_the_caller_bounds_the_attempts(scripted_store: MakeStore) -> None:
    store = scripted_store(_succeed)
    store.close()
    clock = ManualClock()
    stores = _stores(
        store,
        sleep=lambda seconds: clock.advance(int(seconds * 1000)),
        monotonic_s=clock.monotonic_s,
        jitter=lambda: 1.0,
    )
    with time_limit(clock, 2.0):
        with pytest.raises(errors.UnavailableError, match=r"within 2 s"):
            stores.seal_segment(NAME)
        assert 1.0 < clock.monotonic_s() < 2.0
        clock.advance(2_000)
        with pytest.raises(errors.OutOfTimeError):
            stores.seal_segment(NAME)

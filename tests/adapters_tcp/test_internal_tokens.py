"""Every request of the control plane to a segment store has the token that allows it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from headrace import wire
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.tcp.segment_stores import TcpSegmentStores
from headrace.adapters.tcp.store_calls import TOKEN_REFUSED, StoreAddress
from headrace.model.errors import UnavailableError
from headrace.ports.segment_stores import AttributeBound, SegmentScaleRate, SegmentStores

MakeStore = Callable[..., Any]
NAME = "s/t/0.#epoch.0"
BOUND = AttributeBound(1, 2)
DEADLINE_S = 20.0

CALLS: dict[str, Callable[[SegmentStores], object]] = {
    "create_segment": lambda stores: stores.create_segment(NAME, SegmentScaleRate()),
    "create_segments": lambda stores: stores.create_segments([NAME], SegmentScaleRate()),
    "seal_segment": lambda stores: stores.seal_segment(NAME),
    "seal_segments": lambda stores: stores.seal_segments([NAME]),
    "truncate_segment": lambda stores: stores.truncate_segment(NAME, 1),
    "truncate_segment_up_to": lambda stores: stores.truncate_segment_up_to(NAME, 1, BOUND),
    "delete_segment": lambda stores: stores.delete_segment(NAME),
    "delete_segments": lambda stores: stores.delete_segments([NAME]),
    "delete_segment_up_to": lambda stores: stores.delete_segment_up_to(NAME, BOUND),
    "segment_info": lambda stores: stores.segment_info(NAME),
    "segment_infos": lambda stores: stores.segment_infos([NAME]),
    "locate_offsets": lambda stores: stores.locate_offsets([(NAME, 1)]),
    "update_segment_policy": lambda stores: stores.update_segment_policy(NAME, SegmentScaleRate()),
    "merge_segments": lambda stores: stores.merge_segments(NAME, ["s/t/1.#epoch.0"]),
    "incomplete_segments": lambda stores: stores.incomplete_segments([NAME]),
    "append": lambda stores: stores.append(NAME, b"x", 0),
    "read": lambda stores: stores.read(NAME, 0, 1),
    "get_attribute": lambda stores: stores.get_attribute(NAME, 1),
    "compare_and_set_attribute": lambda stores: stores.compare_and_set_attribute(NAME, 1, 2, None),
    "set_attribute_up_to": lambda stores: stores.set_attribute_up_to(NAME, 1, 2, None, BOUND),
    "create_table_segment": lambda stores: stores.create_table_segment(NAME, 8),
    "delete_table_segment": lambda stores: stores.delete_table_segment(NAME),
}


def _stores(store: Any, token: Callable[[], str]) -> TcpSegmentStores:
    """Stores that give up after the second attempt. Each attempt has all the time that a slow machine needs."""
    clock = ManualClock()
    failures = itertools.count(1)

    def jitter() -> float:
        if next(failures) == 2:
            clock.advance(int(DEADLINE_S * 1_000))
        return 0.5

    def locate(_container: int) -> StoreAddress:
        return StoreAddress(store.host, store.port, 1)

    return TcpSegmentStores(
        locate,
        8,
        deadline_s=DEADLINE_S,
        token=token,
        monotonic_s=clock.monotonic_s,
        sleep=lambda _seconds: None,
        jitter=jitter,
    )


def test_each_call_of_the_port_is_listed():
    declared = {name for name, value in vars(SegmentStores).items() if callable(value) and not name.startswith("_")}
    assert declared == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_each_attempt_has_the_token_of_its_time(scripted_store: MakeStore, name: str):
    store = scripted_store(lambda command: wire.AuthTokenCheckFailed(command.request_id, "", 1))
    numbers = itertools.count(1)
    stores = _stores(store, lambda: f"token-{next(numbers)}")
    with pytest.raises(UnavailableError, match="refuses the token of the control plane"):
        CALLS[name](stores)
    stores.close()
    tokens = [command.delegation_token for command in store.requests]
    assert tokens == [f"token-{number}" for number in range(1, len(tokens) + 1)]
    assert len(tokens) == 2


def test_both_commands_of_an_append_are_sent(scripted_store: MakeStore):
    def answer(command: Any) -> wire.WireCommand:
        if isinstance(command, wire.SetupAppend):
            return wire.AppendSetup(command.request_id, command.segment, command.writer_id, -1)
        return wire.DataAppended(command.writer_id, command.event_number, -1, command.request_id, 1)

    store = scripted_store(answer)
    stores = _stores(store, lambda: "token")
    assert stores.append(NAME, b"x", 0) == 1
    stores.close()
    assert [type(command) for command in store.requests] == [wire.SetupAppend, wire.ConditionalBlockEnd]
    assert store.requests[0].delegation_token == "token"


def test_a_refusal_does_not_blame_the_caller(scripted_store: MakeStore):
    store = scripted_store(lambda command: wire.AuthTokenCheckFailed(command.request_id))
    stores = _stores(store, lambda: "token")
    with pytest.raises(UnavailableError) as raised:
        stores.segment_info(NAME)
    stores.close()
    assert isinstance(raised.value.__cause__, UnavailableError)
    assert raised.value.__cause__.specific_code == TOKEN_REFUSED


def test_without_a_token_no_request_is_sent(scripted_store: MakeStore):
    def no_key() -> str:
        raise UnavailableError("no key signs")

    store = scripted_store(lambda _: None)
    stores = _stores(store, no_key)
    with pytest.raises(UnavailableError, match="no key signs"):
        stores.segment_info(NAME)
    stores.close()
    assert store.requests == []

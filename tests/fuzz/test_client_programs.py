"""A few seeds of the random programs of the client, and deliberate bugs of the client that they find."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

import pytest
from whole_trace import WholeTrace

from fuzz import virtual_time
from fuzz.checker import WrongStateError
from fuzz.client_network import FIRST_PORT, HOST, ClientNetwork, MemoryTransport, NetworkFaults, StoreState
from fuzz.client_programs import run_client_program
from fuzz.program_trace import STEPS_KEPT, Trace
from fuzz.randomness import Random
from fuzz.virtual_time import StuckError, run_in_virtual_time
from headrace import wire
from headrace.client.reading.read_progress import ReadProgress
from headrace.client.segment_connections import SegmentConnections
from headrace.client.writing import event_writer
from headrace.client.writing.batch_accumulator import BatchAccumulator
from headrace.client.writing.event_blocks import Block
from headrace.client.writing.segment_appender import SegmentAppender

SEED_OF_LOST_BLOCK = 1
SEED_OF_EARLY_ACKNOWLEDGEMENT = 5
SEED_OF_LOST_ORDER = 41
SEED_OF_EARLY_SUCCESSOR = 7
SEED_OF_OPEN_CONNECTION = 4


def run_clients(seed: int, trace: Trace, **sizes: int) -> Counter[str]:
    return run_in_virtual_time(run_client_program(seed, trace, **sizes), Random(seed))


@pytest.mark.parametrize("seed", range(1, 11))
def test_stored_and_read_events_are_as_their_model(seed: int):
    happened = run_clients(seed, Trace(), calls=16, faults=30)
    assert happened["connections"] > 0


def test_a_seed_does_the_same_in_each_run():
    first, second = WholeTrace(), WholeTrace()
    assert run_clients(6, first) == run_clients(6, second)
    assert first.steps == second.steps
    assert len(first.steps) > STEPS_KEPT


def test_a_program_undoes_its_patches():
    before = time.time, time.monotonic, secrets.randbits, secrets.token_hex, event_writer.EVENT_BYTES_MAX
    state = random.getstate()
    run_clients(5, Trace())
    assert before == (time.time, time.monotonic, secrets.randbits, secrets.token_hex, event_writer.EVENT_BYTES_MAX)
    assert random.getstate() == state


def test_a_block_that_is_not_sent_again_is_found(monkeypatch: pytest.MonkeyPatch):
    def resume(self: SegmentAppender, _flow: object, last_event_number: int) -> None:
        self._complete(last_event_number)

    monkeypatch.setattr(SegmentAppender, "_resume", resume)
    with pytest.raises(WrongStateError):
        run_clients(SEED_OF_LOST_BLOCK, Trace())


def test_an_acknowledgement_of_a_lost_block_is_found(monkeypatch: pytest.MonkeyPatch):
    def resume(self: SegmentAppender, _flow: object, _last_event_number: int) -> None:
        self._complete(self._last_number)

    monkeypatch.setattr(SegmentAppender, "_resume", resume)
    with pytest.raises(WrongStateError, match="acknowledged, and events are not stored"):
        run_clients(SEED_OF_EARLY_ACKNOWLEDGEMENT, Trace())


def test_an_order_that_a_scale_changes_is_found(monkeypatch: pytest.MonkeyPatch):
    honest = BatchAccumulator.reroute

    def reroute(self: BatchAccumulator, queue: Any, in_flight: Iterable[Block], successors: Any) -> None:
        honest(self, queue, reversed(deque(in_flight)), successors)

    monkeypatch.setattr(BatchAccumulator, "reroute", reroute)
    with pytest.raises(WrongStateError, match="comes after event"):
        run_clients(SEED_OF_LOST_ORDER, Trace())


def test_a_successor_that_is_read_too_early_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ReadProgress, "_replaced_together", lambda _progress, segment_id: {segment_id})
    with pytest.raises(WrongStateError, match="the first reader"):
        run_clients(SEED_OF_EARLY_SUCCESSOR, Trace())


def test_a_connection_that_is_left_open_is_found(monkeypatch: pytest.MonkeyPatch):
    async def close(self: SegmentConnections) -> None:
        self._is_closed = True

    monkeypatch.setattr(SegmentConnections, "close", close)
    with pytest.raises(WrongStateError, match="a closed writer has"):
        run_clients(SEED_OF_OPEN_CONNECTION, Trace())


def test_a_store_receives_nothing_behind_a_reset():
    """Also what the client has sent with it by one call."""
    received: list[wire.WireCommand] = []

    class Session:
        def __init__(self, transport: MemoryTransport) -> None:
            self._transport = transport

        def received(self, command: wire.WireCommand) -> None:
            received.append(command)
            self._transport.reset(drops_requests=True)

        def disconnected(self) -> None:
            assert len(received) == 1

    async def send_two() -> None:
        network = ClientNetwork(Random(1), NetworkFaults(), [StoreState(0)], Session)
        transport, _ = await network.connect(asyncio.BufferedProtocol, HOST, FIRST_PORT)
        transport.write(2 * wire.encode(wire.KeepAlive()))
        await asyncio.sleep(1)

    run_in_virtual_time(send_two(), Random(1))
    assert len(received) == 1


def test_tasks_that_run_on_and_on_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(virtual_time, "TURNS_MAX", 1_000)

    async def run_on() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(StuckError, match="run on and on"):
        run_in_virtual_time(run_on(), Random(1))

"""Each acknowledgement is done at last, also if a segment fails while others are replaced or the writer is closed."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from scripted_cluster import Cluster

from headrace import wire
from headrace.client import AsyncHeadrace, CorruptError, UnavailableError
from headrace.client.writing.awaited_changes import Ack

NO_ANSWER = wire.KeepAlive()
"""A reply that no client waits for."""


def _error_of(ack: Ack) -> str:
    """What the events have failed with, "" if they are stored."""
    assert ack._changed.wait_for(lambda: ack.done)
    return str(ack.exception() or "")


def test_no_event_moves_to_a_segment_that_has_failed(cluster: Cluster) -> None:
    """Events without a key may go to each segment, but that one sends nothing any more."""
    may_answer = threading.Event()

    def refuse(command: wire.WireCommand) -> wire.WireCommand | None:
        if not isinstance(command, wire.SetupAppend):
            return None
        if command.segment == cluster.name(0):
            return wire.OperationUnsupported(command.request_id, "SetupAppend")
        return None if may_answer.is_set() else NO_ANSWER

    cluster.refuse = refuse
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t")
        acks = [writer.write_batch([b"%d" % number]) for number in range(64)]
        while writer._accumulator.failure is None:
            time.sleep(0.001)
        cluster.scale([1], [(0.5, 1.0)])
        may_answer.set()
        cluster.drop_connections()
        errors = [_error_of(ack) for ack in acks]
        assert {error for error in errors if error} == {"the segment store does not support SetupAppend"}
        assert len(cluster.all_events()) == errors.count("")
        writer._leave()


def test_blocks_fail_that_are_acknowledged_wrongly(cluster: Cluster) -> None:
    """The store acknowledges more events than the writer has."""
    honest = cluster._reply

    def answer(command: wire.WireCommand, names: dict[int, str]) -> wire.WireCommand | None:
        reply = honest(command, names)
        return replace(reply, event_number=9) if isinstance(reply, wire.DataAppended) else reply

    cluster._reply = answer
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t")
        assert "has stored the events of this writer up to 9" in _error_of(writer.write(b"event", "key"))
        with pytest.raises(CorruptError):
            writer.flush(timeout_s=10)
        writer.close()


@pytest.mark.anyio
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["awaited", "cancelled"])
async def test_closing_fails_events_that_move_meanwhile(cluster: Cluster, *, is_cancelled: bool) -> None:
    """The successors of a segment become known while the appender of another one ends."""
    found, go_on = asyncio.Event(), asyncio.Event()
    async with AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle)) as headrace:
        writer = await headrace.writer("s", "t")
        core = writer._core
        successors = core._admin.successors

        async def find(*arguments: Any, **options: Any) -> Any:
            answer = await successors(*arguments, **options)
            found.set()
            await go_on.wait()
            return answer

        core._admin.successors = find  # type: ignore[method-assign]
        await (await writer.write(b"before", "other"))  # to the segment that stays
        await asyncio.to_thread(cluster.scale, [1], [(0.5, 1.0)])
        ack = await writer.write(b"event", "key")
        await found.wait()
        closing = asyncio.create_task(writer.__aexit__(ValueError, None, None))
        go_on.set()
        if is_cancelled:
            await asyncio.sleep(0)
            closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        with pytest.raises(UnavailableError, match="the writer is closed"):
            await ack
        assert core._connections._is_closed
    assert cluster.all_events() == [b"before"]

"""Any bytes for a whole session, in memory and over a socket: a reply or a closed connection, and nobody is harmed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from random import Random

import pytest
import uvloop
from any_commands import any_command
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.power_cuts import CACHE_BYTES, Survivor, World
from headrace import wire
from headrace.adapters.tcp.listener import WireListener, bind_socket

WAIT_S = 20.0
EXAMPLES = 200
PRECIOUS = "scope/precious/0.#epoch.0"
CONTENT = b"what nobody else may touch" * 100
SEGMENT = "scope/fuzz/0.#epoch.0"
TABLE = "scope/fuzz/table"
NAMES = [SEGMENT, SEGMENT + "#transaction." + "0" * 32, TABLE, "scope/fuzz/1.#epoch.0", "", "x" * 3000, "\0/\u20ac"]
NUMBERS = st.sampled_from([0, 1, 2, -1, 100, 2**31, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
WRITERS = st.sampled_from([5, 6, 1 << 127, (1 << 127) | 9])
COMMANDS = any_command(st.sampled_from(NAMES), NUMBERS, WRITERS)
PRELUDE = b"".join(
    map(
        wire.encode,
        [
            wire.Hello(17, 5),
            wire.CreateSegment(1, SEGMENT, 0, 0),
            wire.CreateTableSegment(2, TABLE),
            wire.SetupAppend(3, 5, SEGMENT),
            wire.AppendBlockEnd(5, 4, b"data", 1, 1, 4),
        ],
    )
)


@st.composite
def conversations(draw):
    """Commands, most of them as they should be, some cut, overwritten, with lying lengths, or of unknown types."""
    stream = bytearray(PRELUDE if draw(st.booleans()) else b"")
    for command in draw(st.lists(COMMANDS, max_size=8)):
        frame = bytearray(wire.encode(command))
        harm = draw(st.sampled_from(["none"] * 8 + ["cut", "byte", "length", "type", "inner"]))
        if harm == "cut":
            del frame[draw(st.integers(0, len(frame))) :]
        elif harm == "byte":
            frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
        elif harm == "length":
            frame[4:8] = draw(st.sampled_from([0, 7, 1 << 20, 1 << 23, (1 << 31) - 1, 1 << 31])).to_bytes(4, "big")
        elif harm == "type":
            frame[0:4] = draw(st.binary(min_size=4, max_size=4))
        elif harm == "inner" and len(frame) > 12:
            position = draw(st.integers(8, len(frame) - 4))
            frame[position : position + 4] = draw(st.sampled_from([b"\x7f\xff\xff\xff", b"\xff" * 4]))
        stream += frame
    return bytes(stream), draw(st.sampled_from([1, 7, 8, 100, 1 << 30]))


class Complaints(logging.Handler):
    """What a store should never log: a request that failed, a container that stopped, a lost exception.

    Clients that earlier tests left open complain when they are collected, at any time.
    """

    def __init__(self):
        super().__init__(logging.ERROR)
        self.addFilter(lambda record: not record.name.startswith("headrace.client"))
        self.found = []

    def emit(self, record):
        self.found.append(self.format(record))


@contextlib.contextmanager
def served():
    """A loop and a store on it that has what is precious."""
    gc.collect()  # tasks that earlier tests left complain when they are collected
    complaints = Complaints()
    world = World(Survivor(), Random(1))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        context = world.running()
        running = runner.run(context.__aenter__())
        runner.run(make_precious(running))
        logging.getLogger().addHandler(complaints)
        try:
            yield runner, running, complaints
        finally:
            logging.getLogger().removeHandler(complaints)
            runner.run(context.__aexit__(None, None, None))


async def make_precious(running):
    connection = await running.connect()
    await connection.call(wire.CreateSegment(1, PRECIOUS, 0, 0))
    await connection.call(wire.SetupAppend(2, 9, PRECIOUS))
    await connection.call(wire.AppendBlockEnd(9, len(CONTENT), CONTENT, 1, 1, 3))
    connection.close()


async def check_unharmed(running, complaints):
    connection = await running.connect()
    assert await connection.call(wire.KeepAlive()) == wire.KeepAlive()
    info = await connection.call(wire.GetStreamSegmentInfo(1, PRECIOUS))
    assert (info.write_offset, info.start_offset, info.is_sealed) == (len(CONTENT), 0, False)
    read = await connection.call(wire.ReadSegment(PRECIOUS, 0, 1 << 20, "", 2))
    assert read.data == CONTENT
    connection.close()
    assert not complaints.found


async def check_memory(running):
    """All that was reserved for the dead has come back: an append of half the cache finds room."""
    connection = await running.connect()
    block = bytes(CACHE_BYTES // 2)
    await connection.call(wire.SetupAppend(1, 10, PRECIOUS))
    reply = await connection.call(wire.AppendBlockEnd(10, len(block), block, 1, 1, 2))
    assert isinstance(reply, wire.DataAppended)
    connection.close()


def test_in_memory():
    with served() as (runner, running, complaints):

        async def talk(stream, piece_bytes):
            connection = await running.connect()
            for first in range(0, len(stream), piece_bytes):
                if not connection.closed:
                    connection.send_bytes(stream[first : first + piece_bytes])
            for _ in range(5):
                await asyncio.sleep(0)
            connection.close()
            await check_unharmed(running, complaints)

        @settings(max_examples=EXAMPLES)
        @given(conversations())
        def run(conversation):
            runner.run(asyncio.wait_for(talk(*conversation), WAIT_S))

        run()
        runner.run(asyncio.wait_for(check_memory(running), WAIT_S))


def test_over_a_socket():
    with served() as (runner, running, complaints):
        random = Random(2)
        listener = WireListener(running.store, lambda: random.getrandbits(128))
        bound = bind_socket("127.0.0.1", 0)
        port = bound.getsockname()[1]
        runner.run(listener.start(bound))

        async def talk(stream, piece_bytes):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                for first in range(0, len(stream), max(piece_bytes, 100)):
                    writer.write(stream[first : first + max(piece_bytes, 100)])
                    await writer.drain()
                writer.write_eof()
                while await reader.read(1 << 16):
                    pass
            writer.close()
            await check_unharmed(running, complaints)

        @settings(max_examples=EXAMPLES)
        @given(conversations())
        def run(conversation):
            runner.run(asyncio.wait_for(talk(*conversation), WAIT_S))

        run()
        runner.run(asyncio.wait_for(check_memory(running), WAIT_S))
        runner.run(listener.stop())


@pytest.mark.parametrize("hello", [wire.Hello(4, 1), wire.Hello(99, 18), wire.Hello(-1, -1)])
def test_versions_that_have_nothing_in_common_end_the_connection(hello):
    with served() as (runner, running, complaints):

        async def talk():
            connection = await running.connect()
            assert await connection.call(hello) == wire.Hello(17, 5)
            with pytest.raises(ConnectionError):
                await connection.receive()
            await check_unharmed(running, complaints)

        runner.run(asyncio.wait_for(talk(), WAIT_S))

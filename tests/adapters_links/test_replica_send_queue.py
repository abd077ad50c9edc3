"""What waits in a link: one system call per turn, no copies of large payloads, and copies when memory is taken back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_links import entry

from headrace.adapters.tcp.replica_links import COPY_BELOW_BYTES, PARTS_MAX, SendQueue
from headrace.codec.replica_messages import Ack, Entry, encode_message

ACK = encode_message(Ack(()))
LARGE_BYTES = 64 << 10


class Kernel:
    """A socket that takes as many bytes as it is told, and counts."""

    def __init__(self, room: int = 1 << 40, per_call: int = 1 << 40) -> None:
        self.room, self.per_call = room, per_call
        self.calls: list[list[tuple[int, int]]] = []  # of each buffer: the identity of its memory, and its length
        self.taken = bytearray()

    def sendmsg(self, buffers: list[memoryview]) -> int:
        assert 0 < len(buffers) <= PARTS_MAX
        taken = min(self.room, self.per_call, sum(map(len, buffers)))
        if not taken:
            raise BlockingIOError
        self.calls.append([(id(view.obj), len(view)) for view in buffers])
        self.taken += b"".join(buffers)[:taken]
        self.room -= taken
        return taken


def put(queue: SendQueue, number: int, payload: bytearray, cuts: Sequence[int] = ()) -> bytes:
    """Queue an entry whose payload is these parts of a memory; its bytes on the wire."""
    header, content = entry(number, bytes(payload))
    ends = [0, *cuts, len(payload)]
    queue.put_entry(header, [memoryview(payload)[start:end] for start, end in pairwise(ends)])
    return encode_message(Entry(header, content))


def test_a_turn_is_one_call():
    kernel = Kernel()
    queue = SendQueue(kernel)
    sent = b"".join(put(queue, number, bytearray(length)) for number, length in enumerate([10, 100_000, 30, 20_000]))
    queue.put(ACK)
    assert queue.waiting_bytes == len(sent) + len(ACK)
    assert queue.flush()
    assert (len(kernel.calls), bytes(kernel.taken), queue.waiting_bytes) == (1, sent + ACK, 0)


def test_large_payloads_go_to_the_kernel_uncopied():
    kernel = Kernel(per_call=50_000)
    queue = SendQueue(kernel)
    payload = bytearray(b"x" * LARGE_BYTES * 4)
    put(queue, 1, payload, [LARGE_BYTES, LARGE_BYTES * 2])
    assert queue.flush()
    assert {memory for call in kernel.calls for memory, length in call if length > 1000} == {id(payload)}
    assert queue.copied_bytes == 0


def test_small_entries_are_joined():
    kernel = Kernel()
    queue = SendQueue(kernel)
    for number in range(5000):
        put(queue, number, bytearray(100))
    queue.flush()
    assert [len(call) for call in kernel.calls] == [1]


def test_many_parts_need_few_calls():
    kernel = Kernel()
    queue = SendQueue(kernel)
    payload = bytearray(range(256)) * 256
    sent = put(queue, 1, payload, range(16, len(payload), 16))
    assert queue.flush()
    assert bytes(kernel.taken) == sent
    assert len(kernel.calls) == len(payload) // 16 // PARTS_MAX + 1


def test_detach_copies_what_waits_once():
    kernel = Kernel(room=40_000)
    queue = SendQueue(kernel)
    payload = bytearray(b"x" * 100_000)
    sent = put(queue, 1, payload)
    assert not queue.flush()
    waiting = queue.waiting_bytes
    queue.detach()
    assert queue.copied_bytes == waiting == len(sent) - 40_000
    payload[:] = b"y" * len(payload)
    for _ in range(3):
        queue.detach()
    assert queue.copied_bytes == waiting
    kernel.room = 1 << 40
    assert queue.flush()
    assert bytes(kernel.taken) == sent


def test_detach_pins_no_memory_of_the_caller():
    queue = SendQueue(Kernel(room=10))
    payloads = [bytearray(100_000), bytearray(COPY_BELOW_BYTES - 1)]
    for number, payload in enumerate(payloads):
        put(queue, number, payload)
    queue.flush()
    queue.detach()
    for payload in payloads:
        payload.clear()  # raises BufferError while a view of it exists


def test_a_broken_socket_is_reported():
    class Broken:
        def sendmsg(self, buffers: list[memoryview]) -> int:
            raise BrokenPipeError

    queue = SendQueue(Broken())
    queue.put(ACK)
    with pytest.raises(OSError):
        queue.flush()


@given(
    st.lists(
        st.sampled_from([0, 1, 500, COPY_BELOW_BYTES - 1, COPY_BELOW_BYTES, 70_000])
        | st.sampled_from(["detach", "flush", "message"]),
        max_size=30,
    ),
    st.sampled_from([1 << 40, 90_000, 333]),
    st.integers(0, 200_000),
)
def test_bytes_keep_their_order(steps: list[int | str], per_call: int, room: int):
    kernel = Kernel(room, per_call)
    queue = SendQueue(kernel)
    sent, memory = b"", []
    for number, step in enumerate(steps):
        match step:
            case int():
                memory.append(bytearray([number]) * step)
                sent += put(queue, number, memory[-1], [step // 3])
            case "message":
                queue.put(ACK)
                sent += ACK
            case "flush":
                queue.flush()
            case _:
                queue.detach()
                for buffer in memory:
                    buffer.clear()
                memory.clear()
        assert queue.waiting_bytes == len(sent) - len(kernel.taken)
    kernel.room = 1 << 40
    assert queue.flush()
    assert bytes(kernel.taken) == sent

"""Frames come out of the receiver as they went into the stream, however the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import wire


def _receive(stream: bytes, cuts: list[int]) -> list[tuple[int, bytes]]:
    receiver = wire.FrameReceiver()
    frames: list[tuple[int, memoryview]] = []
    position = 0
    for size in [*cuts, *([len(stream)] * len(stream))]:
        rest = stream[position : position + size]
        while rest:
            target = receiver.writable()
            count = min(len(rest), len(target))
            target[:count] = rest[:count]
            frames += receiver.received(count)
            position += count
            rest = rest[count:]
        if position == len(stream):
            break
    assert not receiver.inside_frame
    return [(type_code, bytes(payload)) for type_code, payload in frames]


@given(st.lists(st.tuples(st.integers(-5, 5), st.binary(max_size=60)), max_size=12), st.lists(st.integers(1, 40)))
def test_any_cut_of_small_frames(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(wire.FRAME_HEADER.pack(code, len(payload)) + payload for code, payload in frames)
    assert _receive(stream, cuts) == frames


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 100_000, 262_143, 262_144, 1_000_000])
def test_large_frames_between_small_ones(cut: int) -> None:
    frames = [(10, b"a" * 10), (10, bytes(range(256)) * 4096), (9, b""), (10, b"c" * 200_000), (10, b"d" * 262_136)]
    stream = b"".join(wire.FRAME_HEADER.pack(code, len(payload)) + payload for code, payload in frames)
    assert _receive(stream, [cut] * (len(stream) // cut) if cut > 8 else [cut] * 40) == frames


def test_impossible_length_is_rejected_before_allocation() -> None:
    receiver = wire.FrameReceiver()
    receiver.writable()[:8] = wire.FRAME_HEADER.pack(4, 2**31 - 1)
    with pytest.raises(wire.WireFormatError):
        receiver.received(8)


def test_payloads_stay_valid_when_the_receiver_goes_on() -> None:
    receiver = wire.FrameReceiver()
    kept = []
    for number in range(3):
        frame = wire.FRAME_HEADER.pack(100, 4) + bytes([number]) * 4
        receiver.writable()[: len(frame)] = frame
        kept += receiver.received(len(frame))
    assert [bytes(payload) for _, payload in kept] == [bytes([number]) * 4 for number in range(3)]


@given(st.lists(st.tuples(st.integers(140_000, 900_000), st.booleans()), min_size=4, max_size=12))
def test_held_long_payloads_survive_the_reuse_of_buffers(
    frames: list[tuple[int, bool]],
) -> None:
    receiver = wire.FrameReceiver()
    held: list[tuple[int, memoryview]] = []
    for number, (length_bytes, hold) in enumerate(frames):
        stream = memoryview(wire.FRAME_HEADER.pack(100, length_bytes) + bytes([number]) * length_bytes)
        received: list[tuple[int, memoryview]] = []
        while stream:
            target = receiver.writable()
            count = min(len(stream), len(target))
            target[:count] = stream[:count]
            del target
            received += receiver.received(count)
            stream = stream[count:]
        ((_, payload),) = received
        assert bytes(payload) == bytes([number]) * length_bytes
        if hold:
            held.append((number, payload))
        del payload, received
    for number, payload in held:
        assert bytes(payload) == bytes([number]) * len(payload)


def test_buffer_of_a_released_long_payload_is_reused() -> None:
    receiver = wire.FrameReceiver()
    addresses = set()
    for _ in range(10):
        stream = memoryview(wire.FRAME_HEADER.pack(100, 500_000) + bytes(500_000))
        while stream:
            target = receiver.writable()
            count = min(len(stream), len(target))
            target[:count] = stream[:count]
            del target
            for _, payload in receiver.received(count):
                addresses.add(id(payload.obj))
            payload = None
            stream = stream[count:]
    assert len(addresses) == 1

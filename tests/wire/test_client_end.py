"""The client's end of a connection without I/O: handshake, request ids, keep-alives."""

from __future__ import annotations

import pytest

from headrace import wire
from headrace.model.errors import CorruptError, UnavailableError
from headrace.wire.client_end import SILENT_PERIODS_MAX, ClientEnd, RequestIds, flow_of, request_id_of

SEALED = wire.SegmentSealed(7 << 32 | 3, "s/t/0")


def _receive(end: ClientEnd, *commands: wire.WireCommand) -> list[wire.WireCommand]:
    data = b"".join(map(wire.encode, commands))
    end.writable()[: len(data)] = data
    return list(end.received(len(data)))


def test_first_command_must_be_a_hello() -> None:
    with pytest.raises(CorruptError, match="h:9 answered Hello with SegmentSealed"):
        _receive(ClientEnd("h", 9), SEALED)


@pytest.mark.parametrize("hello", [wire.Hello(30, 18), wire.Hello(4, 1), wire.Hello(-1, -1), wire.Hello(5, 17)])
def test_incompatible_hello_is_corrupt(hello: wire.Hello) -> None:
    assert not hello.is_compatible
    with pytest.raises(CorruptError, match="upgrade the older side"):
        _receive(ClientEnd("h", 9), hello)


@pytest.mark.parametrize("hello", [wire.OWN_HELLO, wire.Hello(30, 17), wire.Hello(5, 1)])
def test_compatible_hello_is_followed_by_replies(hello: wire.Hello) -> None:
    end = ClientEnd("h", 9)
    assert _receive(end, hello, SEALED) == [hello, SEALED]
    assert _receive(end, wire.KeepAlive(), SEALED) == [SEALED]


def test_replies_before_an_invalid_frame_are_yielded() -> None:
    end = ClientEnd("h", 9)
    data = wire.encode(wire.OWN_HELLO) + wire.encode(SEALED) + wire.FRAME_HEADER.pack(-12345, 0)
    end.writable()[: len(data)] = data
    received = end.received(len(data))
    assert [next(received), next(received)] == [wire.OWN_HELLO, SEALED]
    with pytest.raises(wire.WireFormatError):
        next(received)


def test_request_ids_carry_their_flow() -> None:
    flow, single = RequestIds(7), RequestIds()
    assert [flow.next_id(), flow.next_id()] == [7 << 32 | 1, 7 << 32 | 2]
    assert [single.next_id(), single.next_id()] == [1, 2]
    assert (request_id_of(SEALED), flow_of(SEALED)) == (SEALED.request_id, 7)
    assert (request_id_of(wire.OWN_HELLO), flow_of(wire.OWN_HELLO)) == (0, 0)


def test_silent_period_makes_a_keep_alive_due() -> None:
    end = ClientEnd("h", 9)
    _receive(end, wire.OWN_HELLO)
    assert not end.keep_alive_is_due()
    assert end.keep_alive_is_due()


def test_peer_is_lost_after_several_silent_periods() -> None:
    end = ClientEnd("h", 9)
    _receive(end, wire.OWN_HELLO)
    end.keep_alive_is_due()
    for _ in range(SILENT_PERIODS_MAX - 1):
        assert end.keep_alive_is_due()
    with pytest.raises(UnavailableError, match="segment store h:9 has stopped answering"):
        end.keep_alive_is_due()


def test_echoed_keep_alive_ends_the_silence() -> None:
    end = ClientEnd("h", 9)
    _receive(end, wire.OWN_HELLO)
    for _ in range(3 * SILENT_PERIODS_MAX):
        if end.keep_alive_is_due():
            assert _receive(end, wire.KeepAlive()) == []

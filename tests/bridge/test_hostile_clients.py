"""Clients of the bridge that send no protocol, half of a request, or come in crowds."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import TypeAlias

import grpc
import pytest
from bridge_in_memory import Bridge
from stream_world import StreamWorld

from headrace.bridge import controller_pb2 as pb
from headrace.bridge.server import METADATA_BYTES_MAX, SERVICE

Ask: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes(9)[:3] + b"\x04" + bytes(5)


@pytest.fixture
def opened(bridge: Bridge) -> Iterator[list[socket.socket]]:
    """Sockets that are closed after the test."""
    sockets: list[socket.socket] = []
    yield sockets
    for each in sockets:
        each.close()


def connected(port: int, opened: list[socket.socket]) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    opened.append(made)
    return made


def received(connection: socket.socket) -> bytes:
    """Everything until the bridge closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(1 << 16):
            data += more
    return data


def test_bytes_that_are_no_http_2_are_cut_off(bridge: Bridge, opened: list[socket.socket]):
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\xff" * 64, PREFACE + b"\xff" * 64):
        stranger = connected(bridge.port, opened)
        stranger.sendall(data)
        received(stranger)
    assert bridge.call("checkScopeExists", pb.ScopeInfo(scope="s")).exists


def test_client_that_vanishes_in_the_middle_harms_no_other(bridge: Bridge, opened: list[socket.socket]):
    for data in (
        PREFACE[:5],
        PREFACE,
        PREFACE + SETTINGS,
        PREFACE + SETTINGS + b"\x00\x40\x00\x01\x04\x00\x00\x00\x01",
    ):
        half = connected(bridge.port, opened)
        half.sendall(data)
        half.close()
    assert bridge.call("checkScopeExists", pb.ScopeInfo(scope="s")).exists


def test_silent_client_is_cut_off(world: StreamWorld, opened: list[socket.socket], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.bridge.server.HANDSHAKE_S", 0.2)
    bridge = Bridge(world)
    try:
        received(connected(bridge.port, opened))
        assert bridge.call("checkScopeExists", pb.ScopeInfo(scope="s")).exists
    finally:
        bridge.close()


def test_idle_client_is_cut_off_and_may_return(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.bridge.server.IDLE_S", 0.1)
    bridge = Bridge(world)
    lost: list[grpc.ChannelConnectivity] = []
    try:
        assert bridge.call("checkScopeExists", pb.ScopeInfo(scope="s")).exists
        bridge.channel.subscribe(lost.append)
        while grpc.ChannelConnectivity.IDLE not in lost:
            pass
        assert bridge.call("checkScopeExists", pb.ScopeInfo(scope="s")).exists
    finally:
        bridge.close()


def test_more_connections_than_allowed_are_closed(
    world: StreamWorld, opened: list[socket.socket], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.bridge.server.CONNECTIONS_MAX", 3)
    bridge = Bridge(world)
    try:
        assert bridge.call("checkScopeExists", pb.ScopeInfo(scope="s")).exists
        crowd = [connected(bridge.port, opened) for _ in range(20)]
        for connection in crowd[2:]:
            assert received(connection) == b""
        assert bridge.call("checkScopeExists", pb.ScopeInfo(scope="s")).exists
        own_connection = (("grpc.use_local_subchannel_pool", 1),)
        with grpc.insecure_channel(f"127.0.0.1:{bridge.port}", options=own_connection) as late:
            ask: Ask = late.unary_unary(f"/{SERVICE.full_name}/listScopes")
            with pytest.raises(grpc.RpcError) as raised:
                ask(b"")
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            for connection in crowd:
                connection.close()
            ask(b"", wait_for_ready=True)
    finally:
        bridge.close()


def test_large_metadata_is_refused(bridge: Bridge):
    ask: Ask = bridge.channel.unary_unary(f"/{SERVICE.full_name}/listScopes")
    with pytest.raises(grpc.RpcError) as raised:
        ask(b"", metadata=(("x-tag", "x" * 4 * METADATA_BYTES_MAX),))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert bridge.call("checkScopeExists", pb.ScopeInfo(scope="s")).exists


def test_unknown_rpc_and_unknown_service_are_told(bridge: Bridge):
    for path in (f"/{SERVICE.full_name}/dropEverything", "/other.Service/listScopes"):
        ask: Ask = bridge.channel.unary_unary(path)
        with pytest.raises(grpc.RpcError) as raised:
            ask(b"")
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED

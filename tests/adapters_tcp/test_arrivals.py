"""New connections while others fail: the order of handshakes, and a listener that breaks."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest
from certificates_at_hand import Authority

from headrace.adapters.tcp import arrivals
from headrace.adapters.tcp.arrivals import Arrivals, ServerTls
from headrace.adapters.tcp.listener import bind_socket
from headrace.adapters.tcp.tls_contexts import store_contexts
from headrace.model.tls_modes import TlsMode
from headrace.wire.tls import client_context

pytestmark = pytest.mark.anyio

NAME = "store-0.headrace.internal"
AUTHORITY = Authority()
WAIT_S = 60


class Echo(asyncio.BufferedProtocol):
    """Sends back what it gets."""

    def __init__(self) -> None:
        self._buffer = bytearray(1024)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        assert self._transport is not None
        self._transport.write(bytes(self._buffer[:nbytes]))


class Reception:
    """Breaks for the first `broken` connections. `admitted` less `released` less `opened` are under way."""

    def __init__(self, broken: int = 0) -> None:
        self.broken = broken
        self.admitted = self.released_count = self.opened = 0
        self.peers: list[tuple[str, str]] = []

    def admit(self, address: str, peer: str) -> bool:
        self.admitted += 1
        self.peers.append((address, peer))
        return True

    def released(self, address: str) -> None:
        self.released_count += 1

    def open(self, address: str, peer: str) -> asyncio.BufferedProtocol:
        self.opened += 1
        if self.opened <= self.broken:
            raise RuntimeError("a defect")
        return Echo()


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


async def echoed(port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=NAME)
    writer.write(b"hello")
    try:
        return await reader.readexactly(5)
    finally:
        writer.close()


async def test_a_defect_in_one_handshake_leaves_the_others_going(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arrivals, "HANDSHAKES_PER_TURN", 1)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    contexts = store_contexts(AUTHORITY.issue(NAME), AUTHORITY.bundle, NAME)
    reception = Reception(broken=2)
    waiting = Arrivals(reception, ServerTls(TlsMode.REQUIRED, lambda: contexts.server))
    bound = bind_socket("127.0.0.1", 0)
    server = await loop.create_server(waiting.protocol, sock=bound)
    trusting = client_context(AUTHORITY.bundle.pem)
    try:
        async with asyncio.timeout(WAIT_S):
            ended = await asyncio.gather(
                *(echoed(bound.getsockname()[1], trusting) for _ in range(12)), return_exceptions=True
            )
    finally:
        server.close()
    assert ended.count(b"hello") == 10
    assert (reception.opened, reception.released_count, waiting.under_way) == (12, 2, 0)


async def test_each_admitted_connection_is_opened_or_released():
    loop = asyncio.get_running_loop()
    reception = Reception()
    waiting = Arrivals(reception, ServerTls(TlsMode.PERMISSIVE, lambda: None))
    bound = bind_socket("127.0.0.1", 0)
    server = await loop.create_server(waiting.protocol, sock=bound)
    port = bound.getsockname()[1]
    for said in (b"", b"\x16\x03", b"plain"):
        waiting.first_byte_s = WAIT_S if said else 0.1  # of the one that sends nothing: others may be slow, too
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        if said == b"plain":
            assert await reader.readexactly(5) == said
        else:
            assert await reader.read() == b""
        writer.close()
    assert (reception.admitted, reception.opened, reception.released_count) == (3, 1, 2)
    assert waiting.under_way == 0
    assert dict(waiting.failures) == {"silent": 1, "no_certificate": 1}
    server.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
async def test_a_socket_for_both_versions_knows_ipv4_peers():
    """Else they are in none of the networks for which connections are reserved, and in no zone."""
    reception = Reception()
    bound = bind_socket("::", 0)
    server = await asyncio.get_running_loop().create_server(Arrivals(reception, ServerTls()).protocol, sock=bound)
    async with server:
        for host in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(host, bound.getsockname()[1])
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
    assert [address for address, _ in reception.peers] == ["127.0.0.1", "::1"]
    assert reception.peers[0][1].startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("fd00::1", "fd00::1"),
        ("::ffff:1:2:3", "::ffff:1:2:3"),
    ],
)
def test_only_mapped_addresses_become_others(host: str, address: str):
    assert arrivals._address_of(host) == address

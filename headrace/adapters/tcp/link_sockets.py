"""The owner's sockets of links between replicas: non-blocking, with or without TLS.

An `ssl.SSLSocket` encrypts into the kernel without a buffer of its own: bytes of which it says that they were sent are
in the kernel. So a link knows what waits in both cases.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from ipaddress import ip_address
from typing import Any, Final

from headrace.model.errors import UnavailableError
from headrace.wire.tls import StoreTls, tls_problem

WOULD_BLOCK: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class EncryptedSends:
    """The sending half of a TLS socket, as `SendingSocket`."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    def sendmsg(self, buffers: list[memoryview], /) -> int:
        """As `socket.sendmsg`. A record that did not fit is sent by the next call, which begins with the same bytes."""
        sent = 0
        try:
            for buffer in buffers:
                rest = buffer
                while rest:
                    count = self._sock.send(rest)  # one record
                    sent += count
                    rest = rest[count:]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            if not sent:
                raise BlockingIOError("the socket takes nothing now") from None
        return sent


async def connected_socket(host: str, port: int) -> socket.socket:
    """A non-blocking socket to the first of the host's addresses that answers. Raises OSError."""
    problem = OSError("the host has no address")
    for family, target in await _targets(host, port):
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(sock, target)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise problem


async def encrypted_socket(sock: socket.socket, tls: StoreTls) -> ssl.SSLSocket:
    """Shake hands over a connected socket, which the returned one replaces. It is closed if that fails.

    Raises:
        UnavailableError: the peer does not use TLS, or its certificate is refused.
    """
    host, port = sock.getpeername()[:2]
    encrypted = tls.context.wrap_socket(sock, server_hostname=tls.name, do_handshake_on_connect=False)
    try:
        while True:
            try:
                encrypted.do_handshake()
                return encrypted
            except ssl.SSLWantReadError:
                await _ready(encrypted, for_reading=True)
            except ssl.SSLWantWriteError:
                await _ready(encrypted, for_reading=False)
    except BaseException as error:
        encrypted.close()
        if isinstance(error, ssl.SSLError):
            raise tls_problem(f"{host}:{port}", tls.name, error) from error
        if isinstance(error, OSError):
            raise UnavailableError(f"store {host}:{port} does not complete the TLS handshake: {error}") from error
        raise


async def send_all(sock: socket.socket, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except WOULD_BLOCK as blocked:
            await _ready(sock, for_reading=isinstance(blocked, ssl.SSLWantReadError))


async def receive(sock: socket.socket, count_max: int) -> bytes:
    """What has arrived, at most so much; nothing at the end."""
    while True:
        try:
            return sock.recv(count_max)
        except WOULD_BLOCK as blocked:
            await _ready(sock, for_reading=not isinstance(blocked, ssl.SSLWantWriteError))


def undelivered_bytes(sock: socket.socket) -> int:
    """Bytes that are decrypted and not received yet: the loop does not call for them."""
    return sock.pending() if isinstance(sock, ssl.SSLSocket) else 0


async def _ready(sock: socket.socket, *, for_reading: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    add, remove = (loop.add_reader, loop.remove_reader) if for_reading else (loop.add_writer, loop.remove_writer)
    add(sock, note)
    try:
        await ready
    finally:
        remove(sock)


async def _targets(host: str, port: int) -> list[tuple[int, Any]]:
    """Address families and addresses. An address needs no look-up, which would take a thread."""
    try:
        version = ip_address(host).version
    except ValueError:
        addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(family, target) for family, _, _, _, target in addresses]
    return [(socket.AF_INET if version == 4 else socket.AF_INET6, (host, port))]

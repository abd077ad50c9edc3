"""GET requests for ranges of objects, over connections that are kept.

`http.client` reads from the socket into the caller's window. For large objects that takes a sixth of the CPU time of
httpx, which the client uses for everything else.
"""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import suppress
from functools import cache
from urllib.parse import unquote, urlsplit

import httpx

from headrace.model.errors import UnavailableError

WINDOW_BYTES = 1024 * 1024
"""What is handed on at a time: some 10,000 small events, one Arrow batch."""

TIMEOUT_S = 30.0
"""Of silence on a connection."""

IDLE_CONNECTIONS_MAX = 8
"""Kept per host: about what the threads of one process use at a time."""

_Origin = tuple[str, str, int]


class ObjectReadError(UnavailableError):
    """An object could not be read to its end this time."""


class ObjectReads:
    """Reads ranges of objects. Several threads may use it at once, each on a connection of its own.

    HTTPS goes through the proxy of the environment (HTTPS_PROXY, NO_PROXY). Plain HTTP never does: it is an S3 emulator
    on this machine.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._idle: dict[_Origin, list[http.client.HTTPConnection]] = {}
        self._busy: dict[http.client.HTTPConnection, socket.socket] = {}
        self._aborts = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def read(self, url: str, headers: Mapping[str, str], length: int) -> Generator[bytearray, None, None]:
        """Yields the `length` bytes of the range that the headers ask for, in new windows of WINDOW_BYTES at most.

        Status and length are checked before the first window. A window is the caller's: it is never written again.

        Raises:
            ObjectReadError: the answer is not exactly this range, the connection failed, or the link is not one.
        """
        try:
            origin, target = _split(url)
            connection, response = self._answer(origin, target, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:  # a link comes from outside
            raise ObjectReadError(_said(error)) from error
        whole = False
        try:
            if response.status != http.client.PARTIAL_CONTENT:
                raise ObjectReadError(f"HTTP status {response.status}")
            if response.headers.get("content-length") != str(length):
                raise ObjectReadError(f"the answer has not the {length} bytes of the range")
            yield from _windows(response, length)
            whole = True
        except (OSError, http.client.HTTPException) as error:
            raise ObjectReadError(_said(error)) from error
        finally:
            # A connection with unread bytes would hand them to the next request.
            self._give_back(origin, connection, keep=whole and not response.will_close)

    def close(self) -> None:
        """Closes the connections. Reads that run in other threads fail, and so do later ones."""
        self._is_closed = True
        self.abort()
        with self._lock:
            connections = [each for idle in self._idle.values() for each in idle]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def abort(self) -> None:
        """Lets the reads fail that run in other threads. Reads that begin later are not affected.

        The time-out is one of silence, so only this ends a read of which a byte comes now and then.
        """
        with self._lock:
            self._aborts += 1
            sockets = list(self._busy.values())
            self._busy.clear()
        for each in sockets:
            with suppress(OSError):  # it has ended
                socket.socket.shutdown(each, socket.SHUT_RDWR)  # that of a TLS socket would change it under its reader

    def _answer(
        self, origin: _Origin, target: str, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        aborts = self._aborts
        while True:
            kept = self._kept(origin)
            connection = kept or _connect(origin, self._timeout_s)
            try:
                if kept is None:
                    connection.connect()
                self._begin(connection, aborts)
                connection.request("GET", target, headers={"Accept-Encoding": "identity", **headers})
                return connection, connection.getresponse()
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._end(connection)
                connection.close()
                # The server may close a connection that is idle at any time: then the request has not failed yet.
                # Silence does not end one. Waiting for it on each kept connection would take minutes.
                if kept is None or isinstance(error, TimeoutError | ValueError) or aborts != self._aborts:
                    raise

    def _begin(self, connection: http.client.HTTPConnection, aborts: int) -> None:
        """The connection is used from now on. Raises OSError after another abort, and if all is closed."""
        with self._lock:
            if self._is_closed or aborts != self._aborts:
                raise ConnectionAbortedError("the read was aborted")
            self._busy[connection] = connection.sock

    def _end(self, connection: http.client.HTTPConnection) -> bool:
        """The connection is not used any more. Returns whether it was not aborted meanwhile."""
        with self._lock:
            return self._busy.pop(connection, None) is not None

    def _kept(self, origin: _Origin) -> http.client.HTTPConnection | None:
        with self._lock:
            idle = self._idle.get(origin)
            return idle.pop() if idle else None

    def _give_back(self, origin: _Origin, connection: http.client.HTTPConnection, *, keep: bool) -> None:
        if self._end(connection) and keep:
            with self._lock:
                idle = self._idle.setdefault(origin, [])
                if len(idle) < IDLE_CONNECTIONS_MAX:
                    idle.append(connection)
                    return
        connection.close()


def _split(url: str) -> tuple[_Origin, str]:
    """Where to connect to, and what to ask for. Raises ValueError."""
    address = urlsplit(url)
    default_port = 443 if address.scheme == "https" else 80
    origin = (address.scheme, address.hostname or "", address.port or default_port)
    return origin, f"{address.path or '/'}?{address.query}" if address.query else address.path or "/"


def _windows(response: http.client.HTTPResponse, length: int) -> Generator[bytearray, None, None]:
    left = length
    while left:
        window = bytearray(min(left, WINDOW_BYTES))
        view = memoryview(window)
        filled = 0
        while filled < len(window):
            count = response.readinto(view[filled:])
            if not count:
                raise ObjectReadError(f"only {length - left + filled} of {length} bytes arrived")
            filled += count
        left -= filled
        yield window


def _connect(origin: _Origin, timeout_s: float) -> http.client.HTTPConnection:
    scheme, host, port = origin
    if scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    proxy = _proxy(host)
    if proxy is None:
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls_context())
    address = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    connection = http.client.HTTPSConnection(
        address.hostname or "", address.port or 80, timeout=timeout_s, context=tls_context()
    )
    credentials = {}
    if address.username is not None:
        plain = f"{unquote(address.username)}:{unquote(address.password or '')}"
        credentials["Proxy-Authorization"] = f"Basic {base64.b64encode(plain.encode()).decode()}"
    connection.set_tunnel(host, port, headers=credentials)
    return connection


def _proxy(host: str) -> str | None:
    proxies = urllib.request.getproxies()
    if urllib.request.proxy_bypass(host):
        return None
    return proxies.get("https") or proxies.get("all")


@cache
def tls_context() -> ssl.SSLContext:
    """Reading the certificates takes longer than reading a small range, so it is done once per process."""
    return httpx.create_ssl_context()


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

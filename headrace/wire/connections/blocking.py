"""The blocking connection to a segment store: sockets, time-outs, windows of requests and their replies.

It is for callers in threads or Lambda functions. It does not retry, does not reconnect and is not thread-safe: the
caller decides what to do after a failure. Any error closes the connection, and the caller must create a new one.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from headrace import wire
from headrace.model.errors import CorruptError, UnavailableError
from headrace.wire.client_end import CONNECT_TIMEOUT_S, ClientEnd, RequestIds, request_id_of
from headrace.wire.tls import StoreTls, tls_problem

REQUESTS_IN_FLIGHT_MAX = 128
"""Requests sent before their replies are read: keeps both socket buffers from filling up against each other."""

_JOIN_BYTES_MAX = 64 * 1024


class BlockingConnection:
    """A connection over which the versions were exchanged."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: StoreTls | None = None,
        timeout_s: float = CONNECT_TIMEOUT_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects and says Hello, both within `timeout_s`. `tls` None: without TLS.

        Raises:
            UnavailableError: no process listens at the address, or it does not answer in time; code
                "store_not_trusted": its certificate is refused.
            CorruptError: the peer does not speak this protocol, or speaks another version of it.
        """
        self.host, self.port = host, port
        self._monotonic_s = monotonic_s
        self._end = ClientEnd(host, port)
        self._received: deque[wire.WireCommand] = deque()
        self._request_ids = RequestIds()
        deadline_s = monotonic_s() + timeout_s
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except (OSError, UnicodeError) as error:  # UnicodeError: the host cannot be a DNS name
            raise self._unavailable("cannot be reached", error) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if tls is not None:
            self._socket = self._encrypted(tls, deadline_s)
        try:
            self.send(wire.OWN_HELLO, deadline_s)
            self.receive(deadline_s)
        except BaseException:
            self.close()
            raise
        self.last_used_s = monotonic_s()

    def next_request_id(self) -> int:
        return self._request_ids.next_id()

    def send(self, command: wire.WireCommand, deadline_s: float) -> None:
        """Hands the frame to the socket; `deadline_s` is a moment of the monotonic clock.

        Raises:
            UnavailableError: the connection is lost or blocked; it is closed now.
        """
        try:
            for part in wire.encode_joined(command, _JOIN_BYTES_MAX):
                self._send_part(memoryview(part), deadline_s)
        except OSError as error:
            self.close()
            raise self._unavailable("took no request", error) from error

    def receive(self, deadline_s: float) -> wire.WireCommand:
        """The next command that is not a keep-alive.

        Raises:
            UnavailableError: nothing was received in time, or the connection is lost; it is closed now.
            WireFormatError: the received bytes are not a frame; the connection is closed now.
        """
        while not self._received:
            try:
                self._socket.settimeout(self._left_s(deadline_s))
                received = self._socket.recv_into(self._end.writable())
            except OSError as error:
                self.close()
                raise self._unavailable("did not answer", error) from error
            if received == 0:
                self.close()
                raise self._unavailable("closed the connection", None)
            self._take(received)
        self.last_used_s = self._monotonic_s()
        return self._received.popleft()

    def call(self, requests: Sequence[Callable[[int], wire.WireCommand]], deadline_s: float) -> list[wire.WireCommand]:
        """The replies to `requests`, in their order; each request is made from the id that it is given.

        At most REQUESTS_IN_FLIGHT_MAX are on their way at a time.

        Raises:
            UnavailableError: the connection was lost before the last reply; some requests may have been carried out.
            CorruptError: the peer answered something that was not asked.
        """
        replies: list[wire.WireCommand] = []
        for first in range(0, len(requests), REQUESTS_IN_FLIGHT_MAX):
            window = {self.next_request_id(): request for request in requests[first : first + REQUESTS_IN_FLIGHT_MAX]}
            for request_id, request in window.items():
                self.send(request(request_id), deadline_s)
            answered: dict[int, wire.WireCommand] = {}
            while len(answered) < len(window):
                reply = self.receive(deadline_s)
                request_id = request_id_of(reply)
                if request_id not in window or request_id in answered:
                    self.close()
                    raise CorruptError(f"{self.host}:{self.port} answered a request {request_id} that is not waiting")
                answered[request_id] = reply
            replies += [answered[request_id] for request_id in window]
        return replies

    def close(self) -> None:
        self._socket.close()

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _encrypted(self, tls: StoreTls, deadline_s: float) -> ssl.SSLSocket:
        try:
            self._socket.settimeout(self._left_s(deadline_s))
            return tls.context.wrap_socket(self._socket, server_hostname=tls.name)
        except OSError as error:
            self.close()
            if isinstance(error, ssl.SSLError):
                raise tls_problem(f"{self.host}:{self.port}", tls.name, error) from error
            raise self._unavailable("does not complete the TLS handshake", error) from error

    def _send_part(self, part: memoryview, deadline_s: float) -> None:
        """As `sendall`, whose time-out begins again with each piece that the peer takes if the socket has TLS."""
        while part:
            self._socket.settimeout(self._left_s(deadline_s))
            part = part[self._socket.send(part) :]

    def _take(self, received: int) -> None:
        try:
            self._received.extend(self._end.received(received))
        except CorruptError:
            self.close()
            raise

    def _left_s(self, deadline_s: float) -> float:
        left_s = deadline_s - self._monotonic_s()
        if left_s <= 0:
            raise TimeoutError("the time allowed is over")
        return left_s

    def _unavailable(self, problem: str, error: OSError | UnicodeError | None) -> UnavailableError:
        because = f": {error}" if error is not None else ""
        return self._end.unavailable(f"{problem}{because}; retry")

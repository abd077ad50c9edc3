"""TLS over memory: ciphertext in, plaintext out, and back. It has no socket and no timer.

The event loops have TLS of their own. It is not used on a server's side, because the loop calls a protocol only after
the handshake, so that handshakes would escape the limit of connections; because each connection has a buffer of
256 KiB and takes up to 512 KiB more while its protocol receives nothing; and because limits of 0 for the write buffer
mean something else there: a protocol is told to pause although nothing waits, and not to resume.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

RECORDS_AT_ONCE_MAX: Final = 64
"""Each takes some microseconds. A peer can send thousands of records in one packet; a fast one sends 16 KiB in each."""

Buffer = bytes | bytearray | memoryview


class TlsEngine:
    """The server's end of one connection. It encrypts at once, and keeps no reference to what it was given.

    `has_ended`: the peer has said that it sends nothing more. `has_more`: the last `read_into` has left records.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "has_ended", "has_more")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object: Any = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.has_ended = False
        self.has_more = False

    def feed(self, ciphertext: Buffer) -> None:
        """Take bytes of the peer. They are copied."""
        self._incoming.write(ciphertext)

    def shake_hands(self) -> bool:
        """Continue the handshake; return whether it is complete.

        Raises:
            ssl.SSLError: it has failed. The alert for the peer is in `take_output`.
        """
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def read_into(self, target: memoryview) -> int:
        """Decrypt some records into `target`; return the number of bytes.

        If it is not full, more must be fed first, unless `has_more`.

        Raises:
            ssl.SSLError: the peer sent something that is not TLS, or an alert.
        """
        filled = 0
        self.has_more = False
        try:
            for _ in range(RECORDS_AT_ONCE_MAX):
                if filled == len(target):
                    break
                count = self._object.read(len(target) - filled, target[filled:])  # at most one record
                filled += count
                if not count:
                    self.has_ended = True
                    break
            else:
                self.has_more = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        return filled

    def write(self, parts: Iterable[Buffer]) -> None:
        """Encrypt. Raises ssl.SSLError."""
        for part in parts:
            rest = memoryview(part)
            while rest:  # an empty record would say nothing
                rest = rest[self._object.write(rest) :]

    def take_output(self) -> bytes:
        """The ciphertext for the peer that has not been taken yet."""
        return self._outgoing.read()

    def close(self) -> None:
        """Say that nothing more is sent; `take_output` has that."""
        with suppress(ssl.SSLError):  # the peer's answer is not waited for
            self._object.unwrap()

    def peer_names(self) -> list[str]:
        """The DNS names in the verified certificate of the peer; none if the context asks for no certificate."""
        found = self._object.getpeercert() or {}
        return [str(entry[1]) for entry in found.get("subjectAltName", ()) if entry[0] == "DNS"]

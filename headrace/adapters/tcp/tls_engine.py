"""TLS over memory: ciphertext in, plaintext out, and back. It has no socket and no timer.

The event loops have TLS of their own. It is not used on a server's side, because the loop calls a protocol only after
the handshake, so that handshakes would escape the limit of connections; because each connection has a buffer of
256 KiB and takes up to 512 KiB more while its protocol receives nothing; and because limits of 0 for the write buffer
mean something else there: a protocol is told to pause although nothing waits, and not to resume.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from headrace.wire.tls import ENCRYPTED_AT_ONCE_BYTES

RECORDS_AT_ONCE_MAX: Final = 64
"""Each takes some microseconds. A peer can send thousands of records in one packet; a fast one sends 16 KiB in each.

OpenSSL handles all records without data that it is given in one call, and a new key takes it 20 microseconds."""

_RECORD_HEADER_BYTES: Final = 5
_LENGTH_AT: Final = 3

Buffer = bytes | bytearray | memoryview


class TlsEngine:
    """The server's end of one connection. It encrypts at once, and keeps no reference to what it was given.

    `has_ended`: the peer has said that it sends nothing more. `has_more`: records wait behind those that the last
    `read_into` has used up.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "_owed_bytes", "_waiting", "has_ended", "has_more")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object: Any = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._waiting = bytearray()  # begins with a record, except for `_owed_bytes` of one that OpenSSL has in part
        self._owed_bytes = 0
        self.has_ended = False
        self.has_more = False

    @property
    def waiting_bytes(self) -> int:
        """Ciphertext that was not decrypted yet."""
        return self._incoming.pending + len(self._waiting)

    def feed(self, ciphertext: Buffer) -> None:
        """Take bytes of the peer, which are copied, and let some of the records that wait be decrypted."""
        if self._waiting:
            self._waiting += ciphertext
        elif ciphertext:
            view = memoryview(ciphertext)
            passed_on = self._pass_on(view)
            self._waiting += view[passed_on:]
            return
        self._pass_on_waiting()

    def shake_hands(self) -> bool:
        """Continue the handshake; return whether it is complete.

        Raises:
            ssl.SSLError: it has failed. The alert for the peer is in `take_output`.
        """
        while True:
            try:
                self._object.do_handshake()
                return True
            except ssl.SSLWantReadError:
                if not self._pass_on_waiting():
                    return False

    def read_into(self, target: memoryview) -> int:
        """Decrypt some records into `target`; return the number of bytes.

        If it is not full, more must be fed first: nothing if `has_more`, since more waits.

        Raises:
            ssl.SSLError: the peer sent something that is not TLS, or an alert.
        """
        filled = 0
        self.has_more = False
        try:
            while filled < len(target) and not self.has_ended:
                count = self._object.read(len(target) - filled, target[filled:])  # at most one record
                filled += count
                self.has_ended = not count
        except ssl.SSLWantReadError:
            self.has_more = len(self._waiting) >= _RECORD_HEADER_BYTES
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        return filled

    def encrypted(self, parts: Iterable[Buffer]) -> Iterator[bytes]:
        """The ciphertext of `parts`, in pieces of about ENCRYPTED_AT_ONCE_BYTES.

        Raises ssl.SSLError.
        """
        room = ENCRYPTED_AT_ONCE_BYTES
        for part in parts:
            rest = memoryview(part)
            while rest:  # an empty record would say nothing
                count = self._object.write(rest[:room])
                rest, room = rest[count:], room - count
                if not room:
                    yield self.take_output()
                    room = ENCRYPTED_AT_ONCE_BYTES
        if room < ENCRYPTED_AT_ONCE_BYTES:
            yield self.take_output()

    def take_output(self) -> bytes:
        """The ciphertext for the peer that has not been taken yet."""
        return self._outgoing.read()

    def close(self) -> None:
        """Say that nothing more is sent; `take_output` has that."""
        with suppress(ssl.SSLError):  # the peer's answer is not waited for
            self._object.unwrap()

    def peer_names(self) -> list[str]:
        """The DNS names in the verified certificate of the peer; none if the context asks for no certificate."""
        certificate = self._object.getpeercert() or {}
        return [str(entry[1]) for entry in certificate.get("subjectAltName", ()) if entry[0] == "DNS"]

    # Inside

    def _pass_on_waiting(self) -> int:
        with memoryview(self._waiting) as view:
            passed_on = self._pass_on(view)
        del self._waiting[:passed_on]
        return passed_on

    def _pass_on(self, view: memoryview) -> int:
        """Give OpenSSL the next records if it has used those before, at most RECORDS_AT_ONCE_MAX; return their bytes.

        The last record may be incomplete.
        """
        if self._incoming.pending:
            return 0
        end = self._owed_bytes
        for _ in range(RECORDS_AT_ONCE_MAX):
            body = end + _RECORD_HEADER_BYTES
            if body > len(view):
                break
            end = body + int.from_bytes(view[end + _LENGTH_AT : body], "big")
        passed_on = min(end, len(view))
        self._incoming.write(view[:passed_on])
        self._owed_bytes = end - passed_on
        return passed_on

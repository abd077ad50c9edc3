"""A TLS peer that makes new keys, which Python's `ssl` cannot: OpenSSL's own library over memory."""

from __future__ import annotations

import ctypes
import ctypes.util
from ctypes import c_char_p, c_int, c_long, c_void_p
from typing import Any, Final

_TLS_1_3: Final = 0x0304
_SET_VERSION_MIN, _SET_VERSION_MAX = 123, 124
_BUFFER_BYTES: Final = 64 << 10


def is_available() -> bool:
    return ctypes.util.find_library("ssl") is not None and ctypes.util.find_library("crypto") is not None


class KeyUpdatingPeer:
    """The client's end of one connection with TLS 1.3. It verifies nothing."""

    def __init__(self) -> None:
        self._ssl = ctypes.CDLL(ctypes.util.find_library("ssl"))
        self._crypto = ctypes.CDLL(ctypes.util.find_library("crypto"))
        for library, name, result, parameters in (
            (self._ssl, "TLS_client_method", c_void_p, []),
            (self._ssl, "SSL_CTX_new", c_void_p, [c_void_p]),
            (self._ssl, "SSL_CTX_ctrl", c_long, [c_void_p, c_int, c_long, c_void_p]),
            (self._ssl, "SSL_CTX_free", None, [c_void_p]),
            (self._ssl, "SSL_new", c_void_p, [c_void_p]),
            (self._ssl, "SSL_free", None, [c_void_p]),
            (self._ssl, "SSL_set_bio", None, [c_void_p, c_void_p, c_void_p]),
            (self._ssl, "SSL_set_connect_state", None, [c_void_p]),
            (self._ssl, "SSL_do_handshake", c_int, [c_void_p]),
            (self._ssl, "SSL_key_update", c_int, [c_void_p, c_int]),
            (self._ssl, "SSL_write", c_int, [c_void_p, c_char_p, c_int]),
            (self._crypto, "BIO_s_mem", c_void_p, []),
            (self._crypto, "BIO_new", c_void_p, [c_void_p]),
            (self._crypto, "BIO_read", c_int, [c_void_p, c_void_p, c_int]),
            (self._crypto, "BIO_write", c_int, [c_void_p, c_char_p, c_int]),
        ):
            function: Any = getattr(library, name)
            function.restype, function.argtypes = result, parameters
        context = self._ssl.SSL_CTX_new(self._ssl.TLS_client_method())
        for command in (_SET_VERSION_MIN, _SET_VERSION_MAX):
            self._ssl.SSL_CTX_ctrl(context, command, _TLS_1_3, None)
        self._connection = self._ssl.SSL_new(context)
        self._ssl.SSL_CTX_free(context)  # the connection has it
        self._in = self._crypto.BIO_new(self._crypto.BIO_s_mem())
        self._out = self._crypto.BIO_new(self._crypto.BIO_s_mem())
        self._ssl.SSL_set_bio(self._connection, self._in, self._out)
        self._ssl.SSL_set_connect_state(self._connection)

    def shake_hands(self, received: bytes) -> tuple[bool, bytes]:
        """Whether the handshake is complete at this end, and what is to be sent."""
        self._crypto.BIO_write(self._in, received, len(received))
        is_complete = self._ssl.SSL_do_handshake(self._connection) == 1
        return is_complete, self._sent()

    def new_keys(self, count: int, *, asks_for_answers: bool) -> bytes:
        """So many records, each with a new key."""
        sent = b""
        for _ in range(count):
            assert self._ssl.SSL_key_update(self._connection, int(asks_for_answers)) == 1
            self._ssl.SSL_do_handshake(self._connection)
            sent += self._sent()
        return sent

    def written(self, data: bytes) -> bytes:
        assert self._ssl.SSL_write(self._connection, data, len(data)) == len(data)
        return self._sent()

    def close(self) -> None:
        self._ssl.SSL_free(self._connection)

    def _sent(self) -> bytes:
        sent, buffer = b"", ctypes.create_string_buffer(_BUFFER_BYTES)
        while (count := self._crypto.BIO_read(self._out, buffer, _BUFFER_BYTES)) > 0:
            sent += buffer.raw[:count]
        return sent

"""The token of a read from tier 2: where the read stopped, and where the run with the next bytes starts.

A client returns the token with its next read, to this store or a later owner. It saves that store one of two look-ups
in the chunk directory. The token is only a hint: the store checks the run in the directory, and ignores a wrong token.
"""

from __future__ import annotations

import struct
from typing import Final

_FIELDS: Final = struct.Struct(">BQQ")
_VERSION: Final = 1


def encode_read_token(offset: int, run_offset: int) -> bytes:
    """The token of a read that stopped at `offset`, inside or at the start of the run that starts at `run_offset`."""
    return _FIELDS.pack(_VERSION, offset, run_offset)


def run_hint(token: bytes, offset: int) -> int | None:
    """The possible start of the run with the byte at `offset`; None if the token is invalid or of another offset."""
    if len(token) != _FIELDS.size:
        return None
    version, stopped_at, run_offset = _FIELDS.unpack(token)
    return run_offset if version == _VERSION and stopped_at == offset and run_offset <= offset else None

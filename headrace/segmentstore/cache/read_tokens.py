"""The token of a read from tier 2: where it stopped, and where the run lies that has the bytes from there on.

A client gives it back with its next read, to this owner or a later one, and saves it one of two look-ups in the chunk
directory. It is only a hint: what it says is looked up, and one that does not fit is as good as none.
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
    """Where the run may start that has the byte at `offset`; None if the token does not say, or is none."""
    if len(token) != _FIELDS.size:
        return None
    version, stopped_at, run_offset = _FIELDS.unpack(token)
    return run_offset if version == _VERSION and stopped_at == offset and run_offset <= offset else None

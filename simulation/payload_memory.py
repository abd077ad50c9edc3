"""The memory of an owner's payloads, which is used again as soon as it is released."""

from __future__ import annotations

from typing import Final, cast

_BUFFER_BYTES: Final = 128


class PayloadMemory:
    """Buffers that are filled and released. The one released last is used next, so that early reuse changes bytes."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def hold(self, payload: bytes) -> memoryview:
        """A copy of a payload, which stays as it is until it is released."""
        length = len(payload)
        buffer = self._free.pop() if self._free else bytearray(_BUFFER_BYTES)
        if length > len(buffer):
            buffer = bytearray(length)
        buffer[:length] = payload
        return memoryview(buffer)[:length]

    def release(self, held: memoryview) -> None:
        """Let the buffer be used again. `held` still reads it, and sees what is written to it then."""
        self._free.append(cast("bytearray", held.obj))

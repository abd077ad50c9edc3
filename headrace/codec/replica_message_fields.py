"""Reads the fields of a replica message one after the other, and never beyond its end."""

from __future__ import annotations

import struct
from typing import Any

from headrace.model.errors import CorruptError


class Fields:
    """The bytes of a message behind its header. Each method raises CorruptError if the message is too short."""

    __slots__ = ("_position", "_raw")

    def __init__(self, raw: memoryview) -> None:
        self._raw = raw
        self._position = 0

    def view(self, length: int) -> memoryview:
        """The next `length` bytes."""
        end = self._position + length
        if end > len(self._raw):
            raise CorruptError(f"a replica message of {len(self._raw)} bytes ends inside its fields")
        taken = self._raw[self._position : end]
        self._position = end
        return taken

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next fields of this layout."""
        return layout.unpack(self.view(layout.size))

    def items(self, layout: struct.Struct, count: int, count_max: int) -> list[tuple[Any, ...]]:
        """The next `count` items. Checks the count before it uses memory."""
        if count > count_max:
            raise CorruptError(f"a replica message claims {count} items, at most {count_max} are allowed")
        return list(layout.iter_unpack(self.view(count * layout.size)))

    def end(self) -> None:
        """Check that nothing follows."""
        if self._position != len(self._raw):
            raise CorruptError(f"a replica message has {len(self._raw) - self._position} bytes behind its fields")

"""Keys and entries of key-value tables in the public API, and the checks of their sizes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import TABLE_VALUE_BYTES_MAX


@dataclass(frozen=True, slots=True, order=True)
class TableKey:
    """A primary key, which determines the segment, and a secondary key. The table fixes the length of both."""

    primary: bytes
    secondary: bytes = b""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A key with its value. Each write gives the key a new `version`, which `replace` and `remove` can compare."""

    key: TableKey
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class KeyLengths:
    """The lengths of all keys of one table, in bytes."""

    primary: int
    secondary: int

    def joined(self, key: TableKey) -> bytes:
        """Returns the key as it is stored. Raises InvalidRequestError if a part has a wrong length."""
        _check_length("primary", key.primary, self.primary)
        _check_length("secondary", key.secondary, self.secondary)
        return bytes(key.primary) + bytes(key.secondary)

    def split(self, stored: bytes) -> TableKey:
        return TableKey(stored[: self.primary], stored[self.primary :])

    def first(self, primary: bytes | None, secondary: bytes | None) -> bytes:
        """Returns the smallest stored key with these parts. None means the smallest possible part."""
        return self._bound(primary, secondary, b"\0")

    def last(self, primary: bytes | None, secondary: bytes | None) -> bytes:
        """Returns the greatest stored key with these parts. None means the greatest possible part."""
        return self._bound(primary, secondary, b"\xff")

    def _bound(self, primary: bytes | None, secondary: bytes | None, rest: bytes) -> bytes:
        return self.joined(
            TableKey(
                rest * self.primary if primary is None else primary,
                rest * self.secondary if secondary is None else secondary,
            )
        )


def check_value(value: bytes) -> bytes:
    """Returns the value as bytes. Raises InvalidRequestError if it is not bytes-like or too large."""
    if not isinstance(value, bytes | bytearray | memoryview) or len(value) > TABLE_VALUE_BYTES_MAX:
        raise InvalidRequestError(f"the value of a table entry must be at most {TABLE_VALUE_BYTES_MAX} bytes")
    return bytes(value)


def _check_length(part: str, key: bytes, length: int) -> None:
    if not isinstance(key, bytes | bytearray) or len(key) != length:
        found = f"{len(key)} bytes" if isinstance(key, bytes | bytearray) else type(key).__name__
        raise InvalidRequestError(
            f"the {part} keys of this table are {length} bytes, not {found}",
            details={"part": part, "length": length},
            code="invalid_key",
        )

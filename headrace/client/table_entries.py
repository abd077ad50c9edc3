"""Keys and entries of key-value tables as users see them, and their checks."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import TABLE_VALUE_BYTES_MAX


@dataclass(frozen=True, slots=True, order=True)
class TableKey:
    """A primary key, which decides where entries lie, and a secondary key; both have the lengths of the table."""

    primary: bytes
    secondary: bytes = b""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """What is stored under a key. `version` is what `replace` and `remove` compare: each write gives another one."""

    key: TableKey
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class KeyLengths:
    """Of every key of one table, in bytes."""

    primary: int
    secondary: int

    def joined(self, key: TableKey) -> bytes:
        """The key as it is stored; raises InvalidRequestError for a wrong length."""
        _check_length("primary", key.primary, self.primary)
        _check_length("secondary", key.secondary, self.secondary)
        return bytes(key.primary) + bytes(key.secondary)

    def split(self, stored: bytes) -> TableKey:
        return TableKey(stored[: self.primary], stored[self.primary :])

    def first(self, primary: bytes | None, secondary: bytes | None) -> bytes:
        """The smallest key with these parts; None stands for the smallest there is."""
        return self._bound(primary, secondary, b"\0")

    def last(self, primary: bytes | None, secondary: bytes | None) -> bytes:
        """The greatest key with these parts; None stands for the greatest there is."""
        return self._bound(primary, secondary, b"\xff")

    def _bound(self, primary: bytes | None, secondary: bytes | None, rest: bytes) -> bytes:
        return self.joined(
            TableKey(
                rest * self.primary if primary is None else primary,
                rest * self.secondary if secondary is None else secondary,
            )
        )


def check_value(value: bytes) -> bytes:
    """Returns the value, if it is one that fits, else raises InvalidRequestError."""
    if not isinstance(value, bytes | bytearray | memoryview) or len(value) > TABLE_VALUE_BYTES_MAX:
        raise InvalidRequestError(f"a value of a table is bytes, at most {TABLE_VALUE_BYTES_MAX} of them")
    return bytes(value)


def _check_length(part: str, key: bytes, length: int) -> None:
    if not isinstance(key, bytes | bytearray) or len(key) != length:
        found = f"{len(key)} bytes" if isinstance(key, bytes | bytearray) else type(key).__name__
        raise InvalidRequestError(
            f"the {part} keys of this table are {length} bytes, not {found}",
            details={"part": part, "length": length},
            code="invalid_key",
        )

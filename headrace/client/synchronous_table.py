"""`KeyValueTable` for programs without an event loop; thread-safe.

Generated from `key_value_table.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

from headrace.client.key_value_table import PAGE_ENTRIES, AsyncKeyValueTable
from headrace.client.loop_thread import LoopThread
from headrace.client.table_entries import TableEntry, TableKey


class KeyValueTable:
    """Data operations on one table; make it with `Headrace.key_value_table`, use it with `with`.

    Every method raises InvalidRequestError (code "invalid_key") for a key of a wrong length, NotFoundError when the
    table is gone, and UnavailableError when its stores could not be reached for too long.
    """

    def __init__(self, thread: LoopThread, core: AsyncKeyValueTable) -> None:
        self._thread = thread
        self._core = core

    def get(self, primary: bytes, secondary: bytes = b"") -> TableEntry | None:
        """The entry; None if there is none."""
        return self._thread.run(self._core.get(primary, secondary))

    def put(self, primary: bytes, value: bytes, secondary: bytes = b"") -> int:
        """Write whatever is there; the new version."""
        return self._thread.run(self._core.put(primary, value, secondary))

    def insert(self, primary: bytes, value: bytes, secondary: bytes = b"") -> int:
        """Write if there is no such key; its version. Raises AlreadyExistsError if there is."""
        return self._thread.run(self._core.insert(primary, value, secondary))

    def replace(self, primary: bytes, value: bytes, version: int, secondary: bytes = b"") -> int:
        """Write if the key has this version; the new one. Raises ConflictError, code "table_key_version"."""
        return self._thread.run(self._core.replace(primary, value, version, secondary))

    def remove(self, primary: bytes, secondary: bytes = b"", *, version: int | None = None) -> None:
        """Remove the key, if it is there; with `version` only if it has this one, else ConflictError."""
        self._thread.run(self._core.remove(primary, secondary, version=version))

    def get_all(self, keys: Sequence[TableKey]) -> list[TableEntry | None]:
        """The entries in the order of `keys`, None for those that are not there. Not all of one moment."""
        return self._thread.run(self._core.get_all(keys))

    def update_all(self, primary: bytes, changes: Mapping[bytes, tuple[bytes, int | None]]) -> dict[bytes, int]:
        """Write several entries of one primary key, all or nothing; the new versions by secondary key.

        `changes` holds by secondary key the value and the condition: None for none, NOT_EXISTS (-1) for a key that must
        not be there, else the version that it must have.

        Raises:
            ConflictError: code "table_key_version": a condition does not hold; nothing was written.
            InvalidRequestError: no changes, or more than BATCH_KEYS_MAX or BATCH_BYTES_MAX.
        """
        return self._thread.run(self._core.update_all(primary, changes))

    def remove_all(self, primary: bytes, conditions: Mapping[bytes, int | None]) -> None:
        """Remove several keys of one primary key, all or nothing; by secondary key the version it must have, or None.

        Raises as `update_all`.
        """
        self._thread.run(self._core.remove_all(primary, conditions))

    def entries(
        self,
        *,
        primary: bytes | None = None,
        first: bytes | None = None,
        last: bytes | None = None,
        page: int = PAGE_ENTRIES,
    ) -> Iterator[TableEntry]:
        """Entries in the order of their keys, both bounds included; None for no bound.

        With `primary` those of one primary key, and the bounds are secondary keys; else the bounds are primary keys.
        Entries that are written or removed meanwhile may appear or not.
        """
        yield from self._thread.iterate(
            lambda: self._core.entries(primary=primary, first=first, last=last, page=page), page
        )

    def keys(
        self,
        *,
        primary: bytes | None = None,
        first: bytes | None = None,
        last: bytes | None = None,
        page: int = PAGE_ENTRIES,
    ) -> Iterator[tuple[TableKey, int]]:
        """Keys with their versions, as `entries`, without reading values."""
        yield from self._thread.iterate(
            lambda: self._core.keys(primary=primary, first=first, last=last, page=page), page
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.closed

    def close(self) -> None:
        """Lets go of the connections. Closing again does nothing."""
        if not self.closed:
            self._thread.run(self._core.close())

    def __enter__(self) -> KeyValueTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._thread.run(self._core.__aexit__(kind, error, trace))

"""`KeyValueTable` for programs without an event loop; thread-safe.

Generated from `key_value_table.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

from headrace.client.key_value_table import PAGE_ENTRIES, AsyncKeyValueTable, TableEntry, TableKey
from headrace.client.loop_thread import LoopCaller


class KeyValueTable:
    """Reads and writes entries of one table. Open it with `Headrace.key_value_table`, use it with `with`.

    Every method raises InvalidRequestError (code "invalid_key") for a key of a wrong length, NotFoundError if the table
    was deleted, and UnavailableError if its stores could not be reached for too long.
    """

    def __init__(self, thread: LoopCaller, core: AsyncKeyValueTable) -> None:
        self._thread = thread
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    def get(self, primary: bytes, secondary: bytes = b"") -> TableEntry | None:
        """Returns the entry of a key, None if the table does not have the key."""
        return self._thread.run(self._core.get(primary, secondary))

    def put(self, primary: bytes, value: bytes, secondary: bytes = b"") -> int:
        """Writes an entry unconditionally. Returns its new version."""
        return self._thread.run(self._core.put(primary, value, secondary))

    def insert(self, primary: bytes, value: bytes, secondary: bytes = b"") -> int:
        """Writes an entry if the table does not have the key, else raises AlreadyExistsError. Returns its version."""
        return self._thread.run(self._core.insert(primary, value, secondary))

    def replace(self, primary: bytes, value: bytes, version: int, secondary: bytes = b"") -> int:
        """Writes an entry if the key has this version. Returns the new version.

        Raises ConflictError, code "table_key_version", if the key has another version or does not exist.
        """
        return self._thread.run(self._core.replace(primary, value, version, secondary))

    def remove(self, primary: bytes, secondary: bytes = b"", *, version: int | None = None) -> None:
        """Removes a key if it exists. With `version`, raises ConflictError if the key has another version."""
        self._thread.run(self._core.remove(primary, secondary, version=version))

    def get_all(self, keys: Sequence[TableKey]) -> list[TableEntry | None]:
        """Returns the entries in the order of `keys`, None for missing ones. The reads are not one snapshot."""
        return self._thread.run(self._core.get_all(keys))

    def update_all(self, primary: bytes, changes: Mapping[bytes, tuple[bytes, int | None]]) -> dict[bytes, int]:
        """Writes several entries of one primary key atomically. Returns the new versions by secondary key.

        `changes` has, by secondary key, the value and the condition: None for no condition, NOT_EXISTS (-1) for a key
        that must not exist, else the version that the key must have.

        Raises:
            ConflictError: code "table_key_version": a condition does not hold; nothing was written.
            InvalidRequestError: there are no changes, or more than BATCH_KEYS_MAX keys or BATCH_BYTES_MAX bytes.
        """
        return self._thread.run(self._core.update_all(primary, changes))

    def remove_all(self, primary: bytes, conditions: Mapping[bytes, int | None]) -> None:
        """Removes several keys of one primary key atomically.

        `conditions` has, by secondary key, the version that the key must have, or None. Raises the same errors as
        `update_all`.
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
        """Yields entries in the order of their keys, from `first` to `last` inclusive; None means no bound.

        With `primary` it yields the entries of this primary key, and the bounds are secondary keys. Otherwise they are
        primary keys. Entries that are written or removed during the iteration may or may not appear.
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
        """Yields keys with their versions. Like `entries`, but without reading the values."""
        yield from self._thread.iterate(
            lambda: self._core.keys(primary=primary, first=first, last=last, page=page), page
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.closed

    def close(self) -> None:
        """Closes the connections. A second call does nothing."""
        if not self.closed:
            self._thread.end(self._core.close())

    def __enter__(self) -> KeyValueTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.closed:
            self._thread.end(self._core.__aexit__(kind, error, trace))

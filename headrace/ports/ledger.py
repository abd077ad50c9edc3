"""The durable log of one segment container: an append-only sequence of numbered entries with one writer at a time.

Its implementation today is the journal of one node; a replicated log of several nodes is planned. Entries of a
container are numbered without gaps; they become durable, and are reported so, in their order. An owner with a higher
epoch fences the ones before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.model.log_space import LogSpace

if TYPE_CHECKING:
    from typing_extensions import Buffer

Done = Callable[[Exception | None], None]
"""Called once on the event loop: with None when the entry is durable, with the error when it never will be known."""

Released = Callable[[], None]
"""Called once on the event loop: when the log reads the memory of the entry no more."""


class LedgerEntry(NamedTuple):
    """An entry read for recovery. `payload` is valid as long as it is referenced."""

    entry: int
    payload: memoryview


class Ledger(Protocol):
    """The log of one container, held by one owner."""

    @property
    def next_entry(self) -> int:
        """The number that the next entry will get."""
        ...

    @property
    def entry_bytes_max(self) -> int:
        """How large an entry may be."""
        ...

    @property
    def found_epoch(self) -> int | None:
        """The epoch of the owner that wrote the newest entry found when the ledger was opened; None if it had none."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes from the truncation point to the end."""
        ...

    @property
    def wants_truncation(self) -> bool:
        """Whether this ledger's oldest entries are what keeps the log from freeing space."""
        ...

    def recover(self, first_entry: int = 0) -> Iterator[LedgerEntry]:
        """Every entry from the truncation point, or from `first_entry` if that is later, to the end, in order.

        Call it before the first append, any number of times. The iterators can be read until the log is truncated, each
        from any one thread. Blocks while it reads.

        Raises:
            CorruptError: entries that were durable are missing or damaged.
        """
        ...

    def append(self, parts: Sequence[Buffer], done: Done, released: Released | None = None) -> int:
        """Queue an entry made of `parts` and return its number.

        The parts must not change until `released` is called. That may be before or after `done`: copies on other
        disks can make an entry durable while this process still writes it to its own. A caller whose parts never
        change passes no `released`.

        Raises:
            InvalidRequestError: more than `entry_bytes_max`.
            FencedError: a newer owner has opened the ledger.
            UnavailableError: the log has failed or is closed; nothing of this owner becomes durable any more.
        """
        ...

    def truncate(self, before_entry: int) -> None:
        """Entries before this one are not needed any more; raises as `append` does."""
        ...

    def close(self) -> None:
        """Take no more entries."""
        ...


class LedgerStore(Protocol):
    """The ledgers of the containers of one store."""

    def open(self, container: int, epoch: int) -> Ledger:
        """The container's ledger for its owner of `epoch`; fences every owner with a lower epoch.

        Raises:
            FencedError: an owner with a higher epoch has opened it already.
        """
        ...

    def release(self, container: int) -> None:
        """Close an open ledger so that it can be opened again with everything in it.

        Blocks until every entry that it accepted is durable. Nothing happens if it is not open.

        Raises:
            UnavailableError: the log has failed.
        """
        ...

    def epochs(self) -> Mapping[int, int]:
        """The containers that have a log here, opened or not, and the epoch of its newest owner here."""
        ...

    def space(self) -> LogSpace:
        """How much room the logs take, and may take."""
        ...

    def forget(self, container: int) -> None:
        """Nothing of the container's log here is needed any more: it takes no entries, and its space is free.

        It may be opened again, and is empty then. Nothing happens if there is none. Raises as `Ledger.append` does.
        """
        ...

"""The durable log of one segment container: an append-only sequence of numbered entries with one writer at a time.

Entries of a container are numbered without gaps; they become durable, and are reported so, in their order. An owner
with a higher epoch fences the ones before it. One implementation keeps one copy of each entry, another keeps copies on
several stores, a third one keeps objects in S3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.model.container_logs import LedgerStart
from headrace.model.store_volume import LogSpace

if TYPE_CHECKING:
    from typing_extensions import Buffer

Done = Callable[[Exception | None], None]
"""Called once on the event loop: with None when the entry is durable, or an error if the outcome will stay unknown."""

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
    def held_bytes(self) -> int:
        """Bytes from the truncation point to the end."""
        ...

    @property
    def unacknowledged_fill(self) -> float:
        """Appended bytes that wait for other stores or S3, as a share of what all logs of a process may have waiting.

        0 in a log that waits for neither.
        """
        ...

    @property
    def lag_fill(self) -> float:
        """The fill for which writers are to be slowed down, so that a copy can catch up; below 1, and 0 if none lags.

        0 in a log without copies on other stores.
        """
        ...

    @property
    def wants_truncation(self) -> bool:
        """Whether this ledger's oldest entries are what keeps the log from freeing space."""
        ...

    @property
    def continued_at(self) -> LedgerStart | None:
        """The first ledger after an accepted loss, while the log may have entries from before it; else None.

        Tier 2 may be ahead of what is left of the log.
        """
        ...

    def knows(self, epoch: int, entry: int) -> bool:
        """Whether an entry, as the owner of `epoch` had it in its log, is in this log or was truncated.

        False for an entry that was lost. Later owners may have given its number to another one.
        """
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
        disks can make an entry durable while this process still writes it to its own. A later entry may be released
        first. A caller whose parts never change passes no `released`.

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

    def needs_lease(self, container: int) -> bool:
        """Whether acknowledgements of a container must wait while the lease of the store may have ended.

        With one copy nothing else keeps an owner that was taken over from acknowledging. Replicas refuse its entries,
        and in S3 their names are taken.
        """
        ...

    async def open(self, container: int, epoch: int) -> Ledger:
        """The container's ledger for its owner of `epoch`; fences every owner with a lower epoch.

        Raises:
            FencedError: an owner with a higher epoch has opened it already.
            UnavailableError: the ledger is still open in this process, or too few replicas answer. Try again.
        """
        ...

    async def release(self, container: int) -> None:
        """Close an open ledger so that it can be opened again with everything in it.

        Returns when the log does not read the memory of any entry any more. Nothing happens if it is not open.

        Raises:
            UnavailableError: the log has failed.
        """
        ...

    def epochs(self) -> Mapping[int, int]:
        """The containers that have a log on this volume only, opened or not, and the epoch of its newest owner here."""
        ...

    def space(self) -> LogSpace:
        """How much room the logs take, and may take."""
        ...

    async def forget(self, container: int) -> None:
        """Nothing of the container's log is needed any more, because tier 2 has everything.

        It takes no entries, and its space is free. It may be opened again, and is empty then. Nothing happens if there
        is none. Raises as `Ledger.append` does.
        """
        ...

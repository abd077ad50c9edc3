"""Workers for many pieces of work that do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from headrace.ports.clock import WorkLeftError, is_time_short

T = TypeVar("T")


class Workers(Protocol):
    """Does pieces of work at the same time, within the deadline of the caller."""

    def each(self, work: Callable[[T], None], items: Iterator[T]) -> None:
        """Call `work` for the items, begun in their order; items are left over when time is short.

        An item that was taken is worked on. Returns when all work has ended; an error of `work` is raised then.
        """
        ...


class InTurn:
    """One worker, in the thread of the caller."""

    def each(self, work: Callable[[T], None], items: Iterator[T]) -> None:
        while not is_time_short():
            try:
                item = next(items)
            except StopIteration:
                return
            work(item)


def each_piece(workers: Workers, work: Callable[[T], None], pieces: Iterable[T], what: str) -> None:
    """Call `work` for all pieces, several at once. Raises WorkLeftError if the time is over before."""
    wanted = list(pieces)
    if len(wanted) == 1:
        work(wanted[0])
        return
    done: list[T] = []

    def process(piece: T) -> None:
        work(piece)
        done.append(piece)

    workers.each(process, iter(wanted))
    if len(done) < len(wanted):
        raise WorkLeftError(f"{len(wanted) - len(done)} pieces of {what} are left: repeat the call")

"""Names of the packed objects that one owner of a container writes. They are never reused, by any owner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.model.errors import AlreadyExistsError, UnavailableError
from headrace.model.packed_objects import packed_epoch, packed_name
from headrace.ports.chunk_storage import ChunkStorage

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ObjectNames:
    """`epoch` is the version of the container's claim: no other owner has it."""

    def __init__(self, container: int, epoch: int) -> None:
        self._container = container
        self._epoch = epoch
        self._given = 0
        self._in_use: set[str] = set()

    @contextmanager
    def new(self) -> Iterator[str]:
        """A name for an object whose runs enter the directory before the block ends, or never."""
        self._given += 1
        name = packed_name(self._container, self._epoch, self._given)
        self._in_use.add(name)
        try:
            yield name
        finally:
            self._in_use.discard(name)

    def may_be_entered(self, name: str) -> bool:
        """Whether runs of this object may enter the directory from now on. Owners of the past are fenced."""
        epoch = packed_epoch(self._container, name)
        return epoch is None or epoch > self._epoch or name in self._in_use


async def put_new(chunk_storage: ChunkStorage, name: str, parts: Sequence[Buffer]) -> None:
    """Create an object under a name that was never used; raises ThrottledError or UnavailableError."""
    try:
        await chunk_storage.put(name, parts)
    except AlreadyExistsError as error:  # an earlier attempt did arrive
        raise UnavailableError(f"object {name} is there already, trying another name") from error

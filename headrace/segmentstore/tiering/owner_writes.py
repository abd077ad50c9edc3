"""What one owner of a container writes: records in one transaction with its claim, and objects of its own names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING

from headrace.metadata.cluster_records import check_claim
from headrace.model.chunks import packed_epoch, packed_name
from headrace.model.errors import AlreadyExistsError, FencedError, UnavailableError
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import UNANSWERED_WRITE_S, MetadataStore, Write, WriteConflictError

if TYPE_CHECKING:
    from typing_extensions import Buffer


# Writes of one owner of a container to the metadata store: in one transaction with a check of its claim.
#
# A fenced owner changes nothing. The metadata store blocks; its calls run in threads, never on the event loop.


class ClaimedWrites:
    """`epoch` is the version of the container's claim."""

    def __init__(self, store: MetadataStore, container: int, epoch: int) -> None:
        self._store = store
        self._container = container
        self._epoch = epoch
        self._claim = check_claim(container, epoch)

    async def write(self, *writes: Write) -> None:
        """Write all or nothing. There is room for one write less than in a transaction without a check.

        Raises:
            FencedError: the container has another owner; nothing was written.
            WriteConflictError: another condition did not hold; `failed` counts the check of the claim as write 0.
            ThrottledError, UnavailableError: the store does not answer, the outcome is unknown.
        """
        try:
            await asyncio.to_thread(self._store.write, self._claim, *writes)
        except WriteConflictError as error:
            if 0 in error.failed:
                raise FencedError(
                    f"container {self._container} has another owner than the one of epoch {self._epoch}"
                ) from error
            raise


# Names of the packed objects that one owner of a container writes. They are never reused, by any owner.


class ObjectNames:
    """`epoch` is the version of the container's claim: no other owner has it."""

    def __init__(self, container: int, epoch: int, clock: Clock) -> None:
        self._container = container
        self._epoch = epoch
        self._clock = clock
        self._given = 0
        self._used_until_s: dict[str, float] = {}
        """Until when runs of an object may enter the directory: also after its use, by an unanswered write."""

    @contextmanager
    def new(self) -> Iterator[str]:
        """A name for an object. No write that enters its runs into the directory begins after the block."""
        now_s = self._clock.monotonic_s()
        self._used_until_s = {name: until_s for name, until_s in self._used_until_s.items() if until_s > now_s}
        self._given += 1
        name = packed_name(self._container, self._epoch, self._given)
        self._used_until_s[name] = inf
        try:
            yield name
        finally:
            self._used_until_s[name] = self._clock.monotonic_s() + UNANSWERED_WRITE_S

    def may_be_entered(self, name: str) -> bool:
        """Whether runs of this object may enter the directory from now on. Owners of the past are fenced."""
        epoch = packed_epoch(self._container, name)
        is_used = self._used_until_s.get(name, -inf) > self._clock.monotonic_s()
        return epoch is None or epoch > self._epoch or is_used


async def put_new(chunk_storage: ChunkStorage, name: str, parts: Sequence[Buffer]) -> None:
    """Create an object under a name that was never used; raises ThrottledError or UnavailableError."""
    try:
        await chunk_storage.put(name, parts)
    except AlreadyExistsError as error:  # an earlier attempt did arrive
        raise UnavailableError(f"object {name} is there already, trying another name") from error


async def put_once(chunk_storage: ChunkStorage, name: str, parts: Sequence[Buffer]) -> None:
    """Create an object, unless an earlier attempt has created it with the same bytes.

    Raises:
        AlreadyExistsError: there are other bytes under the name.
        ThrottledError, UnavailableError: tier 2 does not answer.
    """
    try:
        await chunk_storage.put(name, parts)
    except AlreadyExistsError:
        written = b"".join(parts)
        if await chunk_storage.read(name, 0, len(written)) != written:
            raise

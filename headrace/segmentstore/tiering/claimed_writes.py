"""Writes of one owner of a container to the metadata store: in one transaction with a check of its claim.

A fenced owner changes nothing. The metadata store blocks; its calls run in threads, never on the event loop.
"""

from __future__ import annotations

import asyncio

from headrace.metadata.cluster_records import check_claim
from headrace.model.errors import FencedError
from headrace.ports.metadata_store import MetadataStore, Write, WriteConflictError


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

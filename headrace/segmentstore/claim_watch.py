"""Looks whether the containers of a store are still its own, so that a deposed one stops acknowledging soon.

What is acknowledged between the takeover and the next look is in a log that the new owner does not read: the claim says
who owns a container, it does not say for how long. Every write of tier 2 checks the claim anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from headrace.model.containers import CLUSTER_PARTITION, claim_sort
from headrace.model.errors import FencedError, HeadraceError
from headrace.ports.metadata_store import READS_PER_BATCH_MAX, Key, MetadataStore
from headrace.segmentstore.containers.container import SegmentContainer

_log = logging.getLogger(__name__)

CLAIM_CHECK_S: Final = 2.0
"""Between two looks while anything is logged."""

CLAIM_CHECKS_SKIPPED_MAX: Final = 4
"""Looks that are left out while nothing is logged: an idle store looks every 10 s."""


class ClaimWatch:
    """One per store; `containers` gives those that it serves."""

    def __init__(self, metadata_store: MetadataStore, containers: Callable[[], Iterable[SegmentContainer]]) -> None:
        self._metadata_store = metadata_store
        self._containers = containers
        self._seen: dict[int, int] = {}
        self._skipped = 0

    async def run(self) -> None:
        """Look now and then, until cancelled. A look that fails is made up for by the next one."""
        while True:
            await asyncio.sleep(CLAIM_CHECK_S)
            try:
                await self.tick()
            except HeadraceError as error:
                _log.warning("event=claims_not_checked error=%r", error.message)

    async def tick(self) -> None:
        """Look, unless nothing was logged since the last look and that was not long ago; raises as `check`."""
        seen = {each.container: each.log.last_sequence for each in self._containers()}
        if seen == self._seen and self._skipped < CLAIM_CHECKS_SKIPPED_MAX:
            self._skipped += 1
            return
        self._seen, self._skipped = seen, 0
        await self.check()

    async def check(self) -> None:
        """Stop every container whose claim is another store's.

        Raises:
            ThrottledError, UnavailableError: the metadata store does not answer.
        """
        containers = list(self._containers())
        for first in range(0, len(containers), READS_PER_BATCH_MAX):
            batch = containers[first : first + READS_PER_BATCH_MAX]
            keys = [Key(CLUSTER_PARTITION, claim_sort(each.container)) for each in batch]
            for container, claim in zip(
                batch, await asyncio.to_thread(self._metadata_store.get_many, keys), strict=True
            ):
                if claim is None or claim.version != container.epoch:
                    found = None if claim is None else claim.version
                    container.log.fail(
                        FencedError(
                            f"container {container.container} was taken over: its claim has epoch {found}, "
                            f"this store had {container.epoch}"
                        )
                    )

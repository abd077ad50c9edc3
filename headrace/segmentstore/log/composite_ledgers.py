"""The ledger port of a store that serves containers of both classes: each class has an implementation of its own."""

from __future__ import annotations

from headrace.model.log_classes import ContainerLayout, LogClass
from headrace.model.store_volume import LogSpace
from headrace.ports.ledger import Ledger, LedgerStore


class CompositeLedgers:
    """`stores` has the ledgers on the disks of stores, `s3` those in chunk storage."""

    def __init__(self, layout: ContainerLayout, stores: LedgerStore, s3: LedgerStore) -> None:
        self._layout = layout
        self._stores = stores
        self._s3 = s3

    def needs_lease(self, container: int) -> bool:
        return self._of(container).needs_lease(container)

    async def open(self, container: int, epoch: int) -> Ledger:
        return await self._of(container).open(container, epoch)

    async def release(self, container: int) -> None:
        await self._of(container).release(container)

    def epochs(self) -> dict[int, int]:
        return {**self._stores.epochs(), **self._s3.epochs()}

    def space(self) -> LogSpace:
        """The room on the volume, which the logs in chunk storage do not take."""
        return self._stores.space()

    async def forget(self, container: int) -> None:
        await self._of(container).forget(container)

    def _of(self, container: int) -> LedgerStore:
        return self._s3 if self._layout.class_of(container) is LogClass.S3 else self._stores

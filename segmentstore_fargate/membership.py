"""This store as a member of the cluster: it has a lease, follows the container map, and does what the map says.

A container is opened when tier 2 has all of it, when its log is here, or when the log was given up; one that belongs to
another store is brought to tier 2 and closed. The claim is written under the version that was looked at, so that of two
stores that may open a container one does. A store that cannot renew its lease stops acknowledging before it ends; one
whose lease was ended meanwhile starts a new one, and drops the containers whose claim is another store's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from headrace.metadata.cluster_records import ClusterRecords, ContainerState, StoredMap
from headrace.model.cluster import (
    ContainerMap,
    Duty,
    StoreLease,
    StoreState,
    duty_when_closed,
    duty_when_open,
)
from headrace.model.containers import ContainerClaim
from headrace.model.errors import HeadraceError, UnavailableError
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, WriteConflictError
from headrace.segmentstore.store import SegmentStore
from headrace.workflows.assign_containers import assign_containers, take_unassigned
from segmentstore_fargate.heartbeat import Heartbeat
from segmentstore_fargate.registration import claim_free_container

_log = logging.getLogger(__name__)

WAITING_POLL_S: Final = 0.5
"""Between two looks while a container that belongs here is still with another store."""

HAND_OVER_DEADLINE_S: Final = 60.0
LEAVING_DEADLINE_S: Final = 2.0
"""For telling the cluster that this store stops; without an answer its lease runs out instead."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """What the map says and is looked at for: `share` are the containers that this store takes if nobody has them."""

    container_count: int
    share: tuple[int, ...]


class Membership:
    """`identity` is the lease without its times. `on_fatal` is called when only a new start of the process helps."""

    def __init__(
        self,
        store: SegmentStore,
        metadata_store: MetadataStore,
        clock: Clock,
        identity: StoreLease,
        place: Place,
        on_fatal: Callable[[HeadraceError], None],
    ) -> None:
        self._store = store
        self._records = ClusterRecords(metadata_store)
        self._clock = clock
        self._identity = identity
        self._place = place
        self._on_fatal = on_fatal
        self._map_done: int | None = None
        self._news = asyncio.Event()
        self._leaving = False
        self._settling: asyncio.Task[None] | None = None
        self.heartbeat = Heartbeat(store, self._records, clock, identity, self._news.set, on_fatal)

    @property
    def missing(self) -> list[int]:
        """Containers that the map gives this store and that it does not serve."""
        return [each for each in self._map.map.containers_of(self._identity.store_id) if each not in self._store.owned]

    async def join(self) -> None:
        """Register, and open what belongs here and may be opened; then go on in the background.

        Raises:
            HeadraceError: the metadata store, tier 2 or a log does not allow it.
        """
        await self.heartbeat.register()
        self.heartbeat.start()
        await self._in_thread(self._find_place)
        while await self._settle_once():
            continue
        self._settling = asyncio.ensure_future(self._settle_for_ever())

    async def announce_leaving(self) -> None:
        """Have the map give this store's containers to others, which wait until tier 2 has them.

        From here on this store opens nothing; what it was opening or handing over is brought to an end.
        """
        self._leaving = True
        self._news.set()
        if self._settling is not None:
            await asyncio.wait([self._settling], timeout=LEAVING_DEADLINE_S)
            self._settling.cancel()
        try:
            await asyncio.wait_for(self._leave(), LEAVING_DEADLINE_S)
        except (HeadraceError, TimeoutError) as error:
            _log.warning("event=leaving_not_announced error=%r", error)

    async def end(self) -> None:
        """Stop renewing, and say that this store has left."""
        self.heartbeat.stop()
        try:
            await asyncio.wait_for(self.heartbeat.mark_left(), LEAVING_DEADLINE_S)
        except (HeadraceError, TimeoutError) as error:
            _log.warning("event=leaving_not_announced error=%r", error)
        self.heartbeat.close()

    async def _leave(self) -> None:
        await self.heartbeat.announce_leaving()
        count = self._place.container_count
        made = await self.heartbeat.in_thread(lambda: assign_containers(self._records, count, self._clock.now_ms()))
        _log.info("event=leaving moved=%d", len(made.changed))

    # Containers

    @property
    def _map(self) -> StoredMap:
        return self.heartbeat.map

    def _find_place(self) -> None:
        """Take what nobody has; if that leaves this store without containers, spread all anew."""
        found = take_unassigned(self._records, self._identity.store_id, self._place.share)
        if not found.containers_of(self._identity.store_id):
            assign_containers(self._records, self._place.container_count, self._clock.now_ms())
        self.heartbeat.map = self._records.container_map()

    async def _settle_for_ever(self) -> None:
        while not self._leaving:
            if self.missing:
                await asyncio.sleep(WAITING_POLL_S)
            else:
                await self._news.wait()
            self._news.clear()
            try:
                while await self._settle_once():
                    continue
            except (UnavailableError, WriteConflictError) as error:
                _log.warning("event=containers_not_settled error=%r", error.message)
                self._map_done = None
                await asyncio.sleep(WAITING_POLL_S)
                self._news.set()
            except HeadraceError as error:
                self._on_fatal(error)
                return

    async def _settle_once(self) -> bool:
        """Do what the map says about each container; whether another look may find more to do.

        Costs nothing while the map is as it was, every container of this store is served, and no log of another one
        is here: such a log is looked at again until tier 2 has newer state, since it keeps files of the journal.
        """
        container_map, version = self._map.map, self._map.version
        unsettled = sorted({*self.missing, *self._store.logs_at_rest})
        if self._leaving or (version == self._map_done and not unsettled):
            return False
        closed = [each for each in range(self._place.container_count) if each not in self._store.owned]
        wanted = closed if version != self._map_done else unsettled
        opened = False
        for state in await self._in_thread(lambda: self._records.containers(wanted)):
            opened |= await self._open_if_due(state, container_map)
        self._map_done = version
        await self._hand_over_due(container_map)
        return opened

    async def _open_if_due(self, state: ContainerState, container_map: ContainerMap) -> bool:
        if state.container in self._store.logs_at_rest:
            self._store.let_go_of_past(state.container, state.pointer)
        if duty_when_closed(self._identity.store_id, state.container, state.hold, container_map) is not Duty.OPEN:
            return False
        claim = ContainerClaim(self._identity.store_id, self._identity.host, self._identity.port, self._identity.zone)
        epoch = await self._in_thread(lambda: claim_free_container(self._records, state, claim, self._clock.now_ms()))
        if epoch is None:
            return False  # the next look finds out whose it is
        await self._store.open_container(state.container, epoch, self.heartbeat.confirm)
        return True

    async def _hand_over_due(self, container_map: ContainerMap) -> None:
        """Close what belongs to others, as far as they are there to go on with it."""
        due: dict[str, list[int]] = {}
        for container in self._store.owned:
            if duty_when_open(self._identity.store_id, container, container_map) is Duty.HAND_OVER:
                due.setdefault(container_map.stores[container], []).append(container)
        for taker, containers in due.items():
            found = await self._in_thread(lambda taker=taker: self._records.lease(taker))  # type: ignore[misc]
            if found is None or found.lease.state is not StoreState.SERVING:
                self._map_done = None  # the map will change, or the store come back
                continue
            await self._hand_over(containers)

    async def _hand_over(self, containers: Iterable[int]) -> None:
        done = await asyncio.gather(*(self._store.hand_over(each, HAND_OVER_DEADLINE_S) for each in containers))
        if not all(done):
            raise HeadraceError("a container could not be handed over: only its log here has all of it, starting anew")

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)

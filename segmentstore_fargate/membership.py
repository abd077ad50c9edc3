"""This store as a member of the cluster: it renews its lease, reads the container map, and does what the map says.

A container is opened when tier 2 has all of it, when its log is here, or when the log was given up; one that belongs to
another store is brought to tier 2 and closed. The claim is written under the version that was looked at, so that of two
stores that may open a container one does. A store that cannot renew its lease stops acknowledging before it ends; one
whose lease was ended meanwhile starts a new one, and lets go of what the map has given away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from headrace.metadata.cluster_records import ClusterRecords, ContainerState, StoredMap, write_lease
from headrace.model.cluster import (
    HEARTBEAT_EVERY_S,
    LEASE_MARGIN_S,
    LEASE_S,
    ContainerMap,
    Duty,
    StoreLease,
    StoreState,
    duty_when_closed,
    duty_when_open,
    leaving,
    left,
    registered,
    registration_wait_ms,
    renewed,
)
from headrace.model.containers import ContainerClaim
from headrace.model.errors import FencedError, HeadraceError, UnavailableError
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, WriteConflictError
from headrace.segmentstore.store import SegmentStore
from headrace.workflows.assign_containers import assign_containers, take_unassigned
from segmentstore_fargate.registration import claim_if_unchanged

_log = logging.getLogger(__name__)

WAITING_POLL_S: Final = 0.5
"""Between two looks while a container that belongs here is still with another store."""

HAND_OVER_DEADLINE_S: Final = 60.0
FORMER_SELF_PATIENCE_S: Final = 180.0
"""A former self that goes on renewing its lease for longer is no former self; a task has 120 s to stop."""

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
        self._metadata_store = metadata_store
        self._records = ClusterRecords(metadata_store)
        self._clock = clock
        self._identity = identity
        self._place = place
        self._on_fatal = on_fatal
        self._lease = identity
        self._version = -1
        self._map = StoredMap(ContainerMap(), None)
        self._map_done: int | None = None
        self._news = asyncio.Event()
        self._leaving = False
        self._beating: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        # Its own: a heartbeat must not wait behind reads and writes of tier 2 that do not answer.
        self._heart = ThreadPoolExecutor(1, thread_name_prefix="heartbeat")

    @property
    def missing(self) -> list[int]:
        """Containers that the map gives this store and that it does not serve."""
        return [each for each in self._map.map.containers_of(self._identity.store_id) if each not in self._store.owned]

    async def join(self) -> None:
        """Register, and open what belongs here and may be opened; then go on in the background.

        Raises:
            HeadraceError: the metadata store, tier 2 or a log does not allow it.
        """
        await self._register()
        self._beating = asyncio.ensure_future(self._beat_for_ever())
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
            await asyncio.wait_for(self._on_heart(self._leave), LEAVING_DEADLINE_S)
        except (HeadraceError, TimeoutError) as error:
            _log.warning("event=leaving_not_announced error=%r", error)

    async def end(self) -> None:
        """Stop renewing, and say that this store has left."""
        if self._beating is not None:
            self._beating.cancel()
        try:
            await asyncio.wait_for(self._on_heart(self._mark_left), LEAVING_DEADLINE_S)
        except (HeadraceError, TimeoutError) as error:
            _log.warning("event=leaving_not_announced error=%r", error)
        self._heart.shutdown(wait=False, cancel_futures=True)

    # The lease

    async def _register(self) -> None:
        begun_s = self._clock.monotonic_s()
        while True:
            started_s = self._clock.monotonic_s()
            if started_s - begun_s > FORMER_SELF_PATIENCE_S:
                raise UnavailableError(
                    f"another process has served as {self._identity.store_id} for {FORMER_SELF_PATIENCE_S:g} s: "
                    "give every store a HEADRACE_STORE_ID of its own"
                )
            wait_s = await self._on_heart(self._try_to_register)
            if not wait_s:
                self._extend(started_s)
                _log.info("event=registered incarnation=%d", self._lease.incarnation)
                return
            _log.warning("event=former_lease_waited_for seconds=%.1f", wait_s)
            await asyncio.sleep(wait_s)

    def _try_to_register(self) -> float:
        """Seconds to wait before the next attempt; 0 if it is done."""
        now_ms = self._clock.now_ms()
        found = self._records.lease(self._identity.store_id)
        former = found.lease if found else None
        wait_ms = registration_wait_ms(former, self._identity.volume, now_ms)
        if wait_ms:
            return wait_ms / 1000
        lease = registered(self._identity, former, now_ms)
        if self._leaving:
            lease = leaving(lease, now_ms)
        self._write_lease(lease, found.version if found else None)
        return 0.0

    def _write_lease(self, lease: StoreLease, version: int | None) -> None:
        self._metadata_store.write(write_lease(lease, version))
        self._lease, self._version = lease, 0 if version is None else version + 1

    def _extend(self, started_s: float) -> None:
        self._store.gate.extend(started_s + LEASE_S - LEASE_MARGIN_S)

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_EVERY_S)
            try:
                await self.beat()
            except FencedError as error:
                self._store.gate.close()
                self._on_fatal(error)
                return
            except HeadraceError as error:
                _log.warning("event=lease_not_renewed held=%d error=%r", self._store.gate.held, error.message)

    async def beat(self) -> None:
        """Renew the lease and read the map: one write and one read.

        Raises:
            FencedError: another process has this store's name.
            ThrottledError, UnavailableError, ConflictError: the metadata store does not answer; the lease runs on.
        """
        started_s = self._clock.monotonic_s()
        again = await self._on_heart(self._renew)
        if not again:
            self._extend(started_s)
        found = await self._on_heart(self._records.container_map)
        self._take_map(found)
        if again:  # only now it is known which containers are still this store's
            self._extend(started_s)

    def _renew(self) -> bool:
        """Whether the lease had been ended, and is a new one."""
        try:
            self._write_lease(renewed(self._lease, self._clock.now_ms()), self._version)
        except WriteConflictError:
            return self._take_stock()
        return False

    def _take_stock(self) -> bool:
        """The lease is not as this store left it: a renewal whose answer was lost, an end, or another process."""
        found = self._records.lease(self._identity.store_id)
        if found is not None and found.lease.incarnation != self._lease.incarnation:
            store_id = self._identity.store_id
            raise FencedError(f"another process serves as {store_id}: give every store a HEADRACE_STORE_ID of its own")
        if found is not None and not found.lease.has_ended:
            self._version = found.version
            self._write_lease(renewed(self._lease, self._clock.now_ms()), self._version)
            return False
        _log.warning("event=lease_was_ended incarnation=%d", self._lease.incarnation)
        self._try_to_register()
        return True

    def _take_map(self, found: StoredMap) -> None:
        """Remember the map, and stop at once what was given away behind this store's back."""
        self._map = found
        for container, owned in list(self._store.owned.items()):
            epoch = owned.container.epoch
            if duty_when_open(self._identity.store_id, container, epoch, found.map) is Duty.DROP:
                message = f"container {container} of epoch {epoch} was given up while this store was away"
                owned.container.log.fail(FencedError(message))
        self._news.set()

    def _leave(self) -> None:
        self._write_lease(leaving(self._lease, self._clock.now_ms()), self._version)
        made = assign_containers(self._records, self._place.container_count, self._clock.now_ms())
        _log.info("event=leaving moved=%d", len(made.changed))

    def _mark_left(self) -> None:
        self._write_lease(left(self._lease, self._clock.now_ms()), self._version)

    # Containers

    def _find_place(self) -> None:
        """Take what nobody has; if that leaves this store without containers, spread all anew."""
        found = take_unassigned(self._records, self._identity.store_id, self._place.share)
        if not found.containers_of(self._identity.store_id):
            assign_containers(self._records, self._place.container_count, self._clock.now_ms())
        self._map = self._records.container_map()

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

        Costs nothing while the map is as it was and every container of this store is served.
        """
        container_map, version = self._map.map, self._map.version
        if self._leaving or (version == self._map_done and not self.missing):
            return False
        closed = [each for each in range(self._place.container_count) if each not in self._store.owned]
        wanted = closed if version != self._map_done else self.missing
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
        epoch = await self._in_thread(
            lambda: claim_if_unchanged(self._metadata_store, state.container, claim, state.epoch)
        )
        if epoch is None:
            return False  # somebody was faster: the next look finds out who
        await self._store.open_container(state.container, epoch)
        return True

    async def _hand_over_due(self, container_map: ContainerMap) -> None:
        """Close what belongs to others, as far as they are there to go on with it."""
        due: dict[str, list[int]] = {}
        for container, owned in self._store.owned.items():
            duty = duty_when_open(self._identity.store_id, container, owned.container.epoch, container_map)
            if duty is Duty.HAND_OVER:
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

    # Inside

    async def _on_heart(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._heart, call)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)

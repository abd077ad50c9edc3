"""This store as a member of the cluster: it keeps a lease and follows the container map.

The store opens a container when tier 2 has all of it, when its log is here, or when the map has discarded the log. It
hands over a container that the map assigns to another store. A claim is written under the version that was read, so
that only one of several stores succeeds.

A store that cannot renew its lease stops acknowledging before the lease ends. A store whose lease was ended registers a
new one, and stops the containers that other stores have claimed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from headrace.controller.ticks.assign_containers import assign_containers, take_unassigned
from headrace.metadata.cluster_records import ClusterRecords, ContainerState, StoredMap
from headrace.model.backoff import doubled_pause
from headrace.model.cluster import (
    ContainerAction,
    ContainerMap,
    ReplicationStatus,
    StoreLease,
    StoreState,
    action_when_closed,
    action_when_open,
)
from headrace.model.containers import ContainerClaim
from headrace.model.errors import HeadraceError
from headrace.model.external_access import ExternalOffer
from headrace.model.log_classes import LogClass
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import UNANSWERED_WRITE_S, MetadataStore
from headrace.segmentstore.periodic_task import UNTIL_WOKEN, PeriodicTask, Rest
from headrace.segmentstore.store import SegmentStore
from segmentstore_fargate.heartbeat import Heartbeat, until_answered
from segmentstore_fargate.openings import ContainerOpenings
from segmentstore_fargate.registration import claim_free_container

# Hands containers over to the stores that the map assigns them to, each in a background task of its own.
#
# A container is served while most of it is flushed. If tier 2 does not answer by the deadline, this store continues to
# serve it, and makes the next attempt after a back-off. This is also so if tier 2 stops answering after the container
# was stopped, unless it may already say that no log is needed: then this store opens the container from its log again.

DEADLINE_S: Final = 60.0
RETRY_FIRST_S: Final = DEADLINE_S
"""As long as a failed attempt, so that a container that had to be stopped is served at least half of the time."""
RETRY_MAX_S: Final = 600.0
"""Bounds the delay until a hand-over succeeds after a long outage of tier 2."""


class HandOvers:
    """The hand-overs of one store. `on_end` is called at the end of each: the container, and whether it has gone."""

    def __init__(self, store: SegmentStore, clock: Clock, on_end: Callable[[int, bool], None]) -> None:
        self._store = store
        self._clock = clock
        self._on_end = on_end
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._failed: dict[int, tuple[int, float]] = {}  # how often in a row, and when the pause is over

    def begin(self, container: int) -> None:
        """Hand over a container that is served here."""
        self._tasks[container] = asyncio.ensure_future(self._run(container))

    def may_begin(self, container: int) -> bool:
        """Whether no attempt is in progress, and the pause after a failed one is over."""
        _, retry_at_s = self._failed.get(container, (0, 0.0))
        return container not in self._tasks and self._clock.monotonic_s() >= retry_at_s

    def keep_failures(self, due: Collection[int]) -> None:
        """Forget the failures of containers that need not be handed over any more."""
        self._failed = {container: failed for container, failed in self._failed.items() if container in due}

    async def _run(self, container: int) -> None:
        try:
            handed_over = await self._store.hand_over(container, DEADLINE_S)
        except Exception as error:  # noqa: BLE001 - a defect: the next attempt may succeed
            _log.error("event=hand_over_failed container=%d error=%r", container, error)
            handed_over = False
        if handed_over:
            self._failed.pop(container, None)
        else:
            self._put_off(container)
        del self._tasks[container]
        self._on_end(container, handed_over)

    def _put_off(self, container: int) -> None:
        failures = self._failed.get(container, (0, 0.0))[0] + 1
        pause_s = doubled_pause(failures, RETRY_FIRST_S, RETRY_MAX_S)
        self._failed[container] = failures, self._clock.monotonic_s() + pause_s
        _log.warning("event=hand_over_put_off container=%d failures=%d retry_s=%.0f", container, failures, pause_s)


_log = logging.getLogger(__name__)

WAITING_POLL_S: Final = 0.5
"""Interval of the checks while another store still has a container that the map assigns to this one."""

LEAVING_DEADLINE_S: Final = 2.0
"""To announce that this store stops. If the metadata store does not answer, the lease runs out instead."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """The number of containers, and the `share` of them that this store takes if no store has them."""

    container_count: int
    share: tuple[int, ...]


class Membership:
    """`identity` is the lease without its times. `on_fatal` is called when only a new start of the process helps.

    `offer` is what the store may announce to clients outside its network.
    """

    def __init__(
        self,
        store: SegmentStore,
        metadata_store: MetadataStore,
        clock: Clock,
        identity: StoreLease,
        place: Place,
        on_fatal: Callable[[HeadraceError], None],
        status: Callable[[], ReplicationStatus] = ReplicationStatus,
        offer: ExternalOffer | None = None,
    ) -> None:
        self._store = store
        self._records = ClusterRecords(metadata_store)
        self._clock = clock
        self.identity = identity
        self._place = place
        self._on_fatal = on_fatal
        self._map_done: int | None = None
        self._looked_after: dict[int, float] = {}
        """Containers that have stopped here, or may still be claimed, and until when that may be. If the map assigns
        one to another store, that store waits for this one."""
        self._settling = PeriodicTask(self._settle, self._settling_failed, retry_first_s=WAITING_POLL_S)
        self._leaving = False
        self._looked = False
        self._hand_overs_due = False
        self.heartbeat = Heartbeat(
            store, self._records, clock, identity, self._serves_something, self._beaten, on_fatal, status, offer
        )
        self._hand_overs = HandOvers(store, clock, self._hand_over_ended)
        self._openings = ContainerOpenings(
            store, clock, self._claim, self.heartbeat.confirm, self._settling.wake, self._may_be_claimed
        )

    @property
    def missing(self) -> list[int]:
        """Containers that the map assigns to this store and that it does not serve.

        The map may have more containers (`s3_containers`), for stores with a newer configuration.
        """
        mine = self._map.map.containers_of(self.identity.store_id)
        return [each for each in mine if each not in self._store.owned and each < self._place.container_count]

    async def register(self) -> None:
        """Register this store's lease and start to renew it. Waits while the metadata store does not answer.

        Call it before long work: other stores wait only for a store with a lease.

        Raises:
            UnavailableError: another process has this store's name.
        """
        await self.heartbeat.register()
        self.heartbeat.start()

    async def join(self) -> None:
        """Start to follow the container map in the background.

        Returns when each container that can be opened now is served or has failed for the first time.
        """
        self.heartbeat.take_map(await until_answered("place", lambda: self._in_thread(self._find_place)))
        await until_answered("containers", self._settle_once)
        self._settling.start(self._rest)
        await self._openings.first_attempts()

    async def announce_leaving(self) -> None:
        """Assign this store's containers to other stores, which wait until tier 2 has them.

        This store begins to open no container from now on.
        """
        self._leaving = True
        self._settling.wake()
        await self._settling.stop(LEAVING_DEADLINE_S)
        try:
            async with asyncio.timeout(LEAVING_DEADLINE_S):
                await self._leave()
        except (HeadraceError, TimeoutError) as error:
            _log.warning("event=leaving_not_announced error=%r", error)

    async def finish_openings(self, patience_s: float) -> None:
        """Call it after `announce_leaving`, before the store is closed; as `ContainerOpenings.finish`."""
        await self._openings.finish(patience_s)

    async def end(self) -> None:
        """Stop renewing the lease, and mark it as that of a store that has stopped."""
        self.heartbeat.stop()
        try:
            async with asyncio.timeout(LEAVING_DEADLINE_S):
                await self.heartbeat.mark_left()
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

    def _find_place(self) -> StoredMap:
        """Take unassigned containers of the share, or else recompute the whole map. Returns the map."""
        container_map = take_unassigned(self._records, self.identity.store_id, self._place.share)
        if not container_map.containers_of(self.identity.store_id):
            assign_containers(self._records, self._place.container_count, self._clock.now_ms())
        return self._records.container_map()

    def _serves_something(self) -> bool:
        """Whether this store serves a container, or has none to open: only then does it keep its lease for long."""
        return bool(self._store.owned) or (self._looked and not self._openings.any)

    @property
    def _rest(self) -> Rest:
        """Until the next check of the map. A container that another store still has must not be asked for at once."""
        return Rest.fixed(WAITING_POLL_S) if self.missing or self._looked_after else UNTIL_WOKEN

    async def _settle(self) -> Rest | None:
        await self._settle_once()
        return None if self._leaving else self._rest

    def _settling_failed(self, error: Exception, _retry_s: float) -> bool:
        self._map_done = None
        self._hand_overs_due = True
        if isinstance(error, HeadraceError):
            _log.warning("event=containers_not_settled error=%r", error.message)
        else:  # a defect must not end what opens and hands over containers
            _log.exception("event=settling_failed")
        return not self._leaving

    async def _settle_once(self) -> None:
        """Open and hand over containers as the map says, or start to do so.

        Sends no request while the map is unchanged and every container of this store is served or being opened.
        """
        if self._leaving:
            return
        container_map, version = self._map.map, self._map.version
        for each in self._store.owned:
            self._looked_after.pop(each, None)
        looked_at: Iterable[int] = range(self._place.container_count)
        if version == self._map_done:
            looked_at = sorted({*self.missing, *self._store.logs_at_rest, *self._looked_after})
        wanted = [each for each in looked_at if self._store.is_free(each)]
        if wanted:
            for state in await self._in_thread(lambda: self._records.containers(wanted)):
                action = await self._action(state, container_map)
                if action is ContainerAction.OPEN:
                    if not self._leaving:
                        self._openings.begin(state)
                elif self._clock.monotonic_s() >= self._looked_after.get(state.container, 0.0):
                    self._looked_after.pop(state.container, None)
        self._looked = True
        self._map_done = version
        if self._hand_overs_due:
            self._hand_overs_due = False
            await self._hand_over_due(container_map)

    def _beaten(self) -> None:
        """Look at the map again, and for containers to hand over. Polls do not: it reads leases of other stores."""
        self._hand_overs_due = True
        self._settling.wake()

    async def _action(self, state: ContainerState, container_map: ContainerMap) -> ContainerAction:
        if state.container in self._store.logs_at_rest:
            await self._store.drop_past_log(state.container, state.pointer)
        return action_when_closed(self.identity.store_id, state.container, state.hold, container_map)

    async def _claim(self, seen: ContainerState | int) -> int | None:
        """Claim a container; None if it is not free, or must not be opened here any more."""
        if isinstance(seen, int):
            (state,) = await self._in_thread(lambda: self._records.containers([seen]))
            if await self._action(state, self._map.map) is not ContainerAction.OPEN:
                return None
        else:
            state = seen
        own, in_s3 = self.identity, self._store.layout.class_of(state.container) is LogClass.S3
        claim = ContainerClaim(own.store_id, own.host, own.port, own.zone, log_in_s3=in_s3, tls_name=own.tls_name)
        return await self._in_thread(lambda: claim_free_container(self._records, state, claim, self._clock.now_ms()))

    async def _hand_over_due(self, container_map: ContainerMap) -> None:
        """Hand over containers that the map assigns to other stores, if those stores can take over."""
        own = self.identity.store_id
        self._hand_overs.keep_failures([each for each, store in container_map.stores.items() if store != own])
        due: dict[str, list[int]] = {}
        for container in self._store.owned:
            is_due = action_when_open(own, container, container_map) is ContainerAction.HAND_OVER
            if is_due and self._hand_overs.may_begin(container):
                due.setdefault(container_map.stores[container], []).append(container)
        for taker, containers in due.items():
            stored = await self._in_thread(lambda taker=taker: self._records.lease(taker))  # type: ignore[misc]
            if stored is not None and stored.lease.state is StoreState.SERVING:
                for each in containers:
                    if each in self._store.owned and self._hand_overs.may_begin(each):
                        self._hand_overs.begin(each)

    def container_failed(self, container: int, error: HeadraceError) -> None:
        """Note that a container has stopped, so that it is opened from its log again."""
        self._openings.note_failure(container, error)
        self._looked_after.setdefault(container, 0.0)
        self._settling.wake()

    def _may_be_claimed(self, container: int) -> None:
        """A claim that had no answer may take effect after this store has looked, and found another one's container."""
        self._looked_after[container] = self._clock.monotonic_s() + UNANSWERED_WRITE_S

    def _hand_over_ended(self, container: int, is_done: bool) -> None:
        """If it has failed after the container was stopped, the container is opened from its log again."""
        if not is_done:
            self._looked_after.setdefault(container, 0.0)
        self._settling.wake()

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)

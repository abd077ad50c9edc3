"""The lease of this store: registered once, and renewed with every heartbeat, which then checks the store's claims.

Only the claim of a container decides who owns it. A heartbeat renews the lease, then reads the claims of all containers
that this store serves or opens, in one batch with the container map. Only then does it release acknowledgements.

During the lease no other store can claim these containers (`claim_free_container`), so the result of the read is valid
until the renewed lease ends. The lease is counted from before its renewal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

from headrace.metadata.cluster_records import ClusterRecords, StoredMap, write_lease
from headrace.metadata.external_ports import TakenPort, take_port
from headrace.model.cluster import (
    HEARTBEAT_EVERY_S,
    LEASE_MARGIN_S,
    LEASE_S,
    UNSERVED_MAX_MS,
    ContainerMap,
    ReplicationStatus,
    StoreLease,
    giving_way_ms,
    leaving,
    left,
    noted_flush_lag,
    noted_replication,
    noted_serving,
    registered,
    registration_wait_ms,
    renewed,
)
from headrace.model.errors import ConflictError, FencedError, HeadraceError, ThrottledError, UnavailableError
from headrace.model.external_access import ExternalOffer
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Write, WriteConflictError
from headrace.segmentstore.periodic_task import PeriodicTask, Rest
from headrace.segmentstore.store import SegmentStore

_log = logging.getLogger(__name__)

FORMER_SELF_PATIENCE_S: Final = 180.0
"""A lease that is renewed for longer belongs to another process with this name, since a task has 120 s to stop."""

START_RETRY_S: Final = 3.0
"""Between two attempts to start while the metadata store does not answer."""

T = TypeVar("T")


class Heartbeat:
    """`identity` is the lease without its times. `on_map` is called after every heartbeat; `map` is the map it read.

    `serves_something` says whether this store serves a container, or has none to open. `status` is what the lease says
    of replicated logs. `offer` is what the store may announce to clients outside its network.
    """

    def __init__(
        self,
        store: SegmentStore,
        records: ClusterRecords,
        clock: Clock,
        identity: StoreLease,
        serves_something: Callable[[], bool],
        on_map: Callable[[], None],
        on_fatal: Callable[[HeadraceError], None],
        status: Callable[[], ReplicationStatus],
        offer: ExternalOffer | None = None,
    ) -> None:
        self._store = store
        self._records = records
        self._clock = clock
        self._identity = identity
        self._serves_something = serves_something
        self._on_map = on_map
        self._on_fatal = on_fatal
        self._status = status
        self._offer = offer
        self._lease = identity
        self._version = -1
        self._taken_up = identity  # the last registration, whose answer may have been lost
        self._leaving = False
        self._gave_way = False
        self._lacks_port = False
        self._beats: PeriodicTask | None = None
        self.map = StoredMap(ContainerMap(), None)
        # A thread of its own, so that heartbeats do not wait behind requests to tier 2 that do not answer.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="heartbeat")

    async def register(self) -> None:
        """Register this store's lease.

        Waits for the lease of a former process with this name on another disk, for other stores to take over from a
        store that served nothing for long, and while the metadata store does not answer. In none of these cases would
        it help to restart the process.

        Raises:
            UnavailableError: another process has this store's name.
        """
        waited_s = 0.0
        while True:
            started_s = self._clock.monotonic_s()
            if waited_s > FORMER_SELF_PATIENCE_S:
                raise UnavailableError(
                    f"another process has served as {self._identity.store_id} for {FORMER_SELF_PATIENCE_S:g} s: "
                    "give every store a HEADRACE_STORE_ID of its own"
                )
            wait_s = await until_answered("lease", lambda: self.in_thread(self._try_to_register))
            if not wait_s:
                self._extend_gate(started_s)  # this process has no claims to check yet
                _log.info("event=registered incarnation=%d", self._lease.incarnation)
                return
            _log.warning("event=former_lease_waited_for seconds=%.1f", wait_s)
            if not self._gave_way:
                waited_s += wait_s
            await asyncio.sleep(wait_s)

    def start(self) -> None:
        """Beat until `stop`."""
        self._beats = PeriodicTask(self._beat_and_rest, self._beat_failed, retry_first_s=HEARTBEAT_EVERY_S)
        self._beats.start(Rest.fixed(HEARTBEAT_EVERY_S))

    def stop(self) -> None:
        if self._beats is not None:
            self._beats.cancel()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def beat(self) -> None:
        """Renew the lease, read the map and this store's claims, and let acknowledgements out: a write and a read.

        Raises:
            FencedError: another process has this store's name.
            ThrottledError, UnavailableError, ConflictError: the metadata store does not answer; the lease runs on.
        """
        started_s = self._clock.monotonic_s()
        status, lag_s = self._status(), self._store.flush_lag_s
        await self.in_thread(lambda: self._renew(status, lag_s))
        await self._check_claims()
        self._extend_gate(started_s)
        self._on_map()

    async def name_replica(self, replica_id: str) -> None:
        """Name the replica of this store's journal in the lease, unless it does so already; raises as `beat`."""
        self._identity = replace(self._identity, replica_id=replica_id)
        if self._lease.replica_id != replica_id:
            await self.beat()

    def take_map(self, stored_map: StoredMap) -> None:
        """Remember a map that was read, unless a newer one was read meanwhile."""
        if stored_map.version is not None and stored_map.version >= (self.map.version or 0):
            self.map = stored_map

    async def confirm(self, container: int, epoch: int) -> None:
        """Check that this store still owns a container that it is about to serve.

        Its claim may have been written long ago, under a lease that has ended since.

        Raises:
            FencedError: another store has claimed it.
            ThrottledError, UnavailableError: the metadata store does not answer.
        """
        _, claims = await self.in_thread(lambda: self._records.map_and_claims([container]))
        if claims[container] != epoch:
            raise taken_over(container, epoch, claims[container])

    async def announce_leaving(self) -> None:
        """Mark the lease as that of a store that is stopping; raises as `beat`."""
        self._leaving = True
        await self.in_thread(lambda: self._write_lease(leaving(self._lease, self._clock.now_ms()), self._version))

    async def mark_left(self) -> None:
        """Mark the lease as that of a store that has stopped; raises as `beat`."""
        await self.in_thread(lambda: self._write_lease(left(self._lease, self._clock.now_ms()), self._version))

    async def in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # The lease

    def _try_to_register(self) -> float:
        """Seconds to wait before the next attempt; 0 if it is done."""
        now_ms = self._clock.now_ms()
        stored = self._records.lease(self._identity.store_id)
        former = stored.lease if stored else None
        wait_ms = 0 if self._serves_something() else giving_way_ms(former, now_ms)
        self._gave_way = wait_ms > 0
        wait_ms = wait_ms or registration_wait_ms(former, self._identity.volume, now_ms)
        if wait_ms:
            return wait_ms / 1000
        port = self._take_port()
        lease = registered(replace(self._identity, external=port.address), former, now_ms)
        if self._leaving:
            lease = leaving(lease, now_ms)
        self._taken_up = lease
        self._write_lease(lease, stored.version if stored else None, port.writes)
        return 0.0

    def _take_port(self) -> TakenPort:
        port = take_port(self._records, self._offer, self._identity.store_id)
        lacks_port = self._offer is not None and port.address is None
        if lacks_port and not self._lacks_port:
            _log.error("event=external_port_missing store=%s", self._identity.store_id)
        self._lacks_port = lacks_port
        return port

    def _write_lease(self, lease: StoreLease, version: int | None, more: Sequence[Write] = ()) -> None:
        lease = replace(lease, replica_id=self._identity.replica_id)  # it may be named while a heartbeat is under way
        self._records.store.write(write_lease(lease, version), *more)
        self._lease, self._version = lease, 0 if version is None else version + 1

    def _extend_gate(self, started_s: float) -> None:
        self._store.gate.extend(started_s + LEASE_S - LEASE_MARGIN_S)

    async def _beat_and_rest(self) -> Rest:
        await self.beat()
        return Rest.fixed(HEARTBEAT_EVERY_S)

    def _beat_failed(self, error: Exception, _retry_s: float) -> bool:
        match error:
            case FencedError():
                self._store.gate.close()
                self._on_fatal(error)
                return False
            case HeadraceError():
                _log.warning("event=lease_not_renewed held=%d error=%r", self._store.gate.held, error.message)
            case _:  # a defect: the lease runs out if it stays, and comes back if it does not
                _log.exception("event=heartbeat_failed held=%d", self._store.gate.held)
        return True

    def _renew(self, status: ReplicationStatus, flush_lag_s: float) -> None:
        now_ms = self._clock.now_ms()
        self._lease = noted_serving(self._lease, self._serves_something(), now_ms)
        self._lease = noted_flush_lag(noted_replication(self._lease, status), flush_lag_s, now_ms)
        if giving_way_ms(self._lease, now_ms):
            self._take_up_again()
            return
        port = TakenPort(self._lease.external)
        if self._offer is not None and port.address is None:
            port = self._take_port()  # there was none at the start, while too many stores of before still ran
        try:
            self._write_lease(renewed(replace(self._lease, external=port.address), now_ms), self._version, port.writes)
        except WriteConflictError:
            self._take_stock()

    def _take_stock(self) -> None:
        """Find out why the lease changed: a lost reply to a write, its end by another store, or another process."""
        stored = self._records.lease(self._identity.store_id)
        if stored is not None and not self._is_own(stored.lease):
            store_id = self._identity.store_id
            raise FencedError(f"another process serves as {store_id}: give every store a HEADRACE_STORE_ID of its own")
        if stored is not None and not stored.lease.has_ended:
            # As the record has it: a port that no lease names may be another store's meanwhile.
            external = stored.lease.external
            self._lease = replace(self._lease, incarnation=stored.lease.incarnation, external=external)
            self._version = stored.version
            self._write_lease(renewed(self._lease, self._clock.now_ms()), self._version)
            return
        _log.warning("event=lease_was_ended incarnation=%d", self._lease.incarnation)
        self._take_up_again()

    def _is_own(self, lease: StoreLease) -> bool:
        """Whether this process wrote the lease, perhaps without getting the reply. No other process has its disk."""
        taken_up = self._taken_up
        is_taken_up = (lease.incarnation, lease.volume) == (taken_up.incarnation, taken_up.volume)
        return is_taken_up or lease.incarnation == self._lease.incarnation

    def _take_up_again(self) -> None:
        """Register a new lease. Raises UnavailableError if that must wait, so that the gate is not extended."""
        wait_s = self._try_to_register()
        if wait_s:
            raise UnavailableError(
                f"this store has served nothing for {UNSERVED_MAX_MS // 1000} s: others may take over, its lease "
                f"runs out and is taken up again in {wait_s:.0f} s"
            )

    # The claims

    async def _check_claims(self) -> None:
        """Read the map and all claims of this store, and stop the containers that another store has claimed."""
        checked: dict[int, int] = {}
        unchecked = dict(self._store.claims)
        while True:
            asked = sorted(unchecked)
            stored_map, claims = await self.in_thread(lambda asked=asked: self._records.map_and_claims(asked))  # type: ignore[misc]
            self.take_map(stored_map)
            for container, epoch in unchecked.items():
                if claims[container] != epoch:
                    self._store.lose_claim(container, epoch, taken_over(container, epoch, claims[container]))
            checked |= unchecked
            # A claim may have been added meanwhile. The gate must not open before it was checked.
            unchecked = {each: epoch for each, epoch in self._store.claims.items() if checked.get(each) != epoch}
            if not unchecked:
                return


async def until_answered(what: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat `ask` until it succeeds: while the metadata store does not answer, a restart would not help."""
    while True:
        try:
            return await ask()
        except (ThrottledError, UnavailableError, ConflictError) as error:
            _log.warning("event=start_waits for=%s retry_s=%.1f error=%r", what, START_RETRY_S, error.message)
            await asyncio.sleep(START_RETRY_S)


def taken_over(container: int, epoch: int, claimed: int | None) -> FencedError:
    return FencedError(
        f"container {container} was taken over: its claim has epoch {claimed}, this store had {epoch}",
        details={"container": container},
    )

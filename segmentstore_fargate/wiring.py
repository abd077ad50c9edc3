"""One segment store process put together: the only module here that chooses adapters."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Final

import botocore.session

from headrace.adapters import log_lines
from headrace.adapters.disk import DiskJournalDisk
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.s3.chunk_storage import S3ChunkStorage
from headrace.adapters.s3.client import s3_client
from headrace.adapters.system_clock import SystemClock
from headrace.adapters.tcp.listener import WireListener, bind_socket
from headrace.model.cluster import FIRST_PROTOCOL, REPLICA_PROTOCOL, ReplicationStatus, StoreLease
from headrace.model.errors import CorruptError, FencedError, HeadraceError
from headrace.model.formats import RELEASE
from headrace.model.rates import TICK_S
from headrace.segmentstore.cache.block_pool import prepare_in_thread
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.metrics import MeasuredChunkStorage, MeasuredJournalDisk, MeasuredMetadataStore
from headrace.segmentstore.owned_container import ContainerOpening
from headrace.segmentstore.periodic_task import PeriodicTask, Rest
from headrace.segmentstore.store import SegmentStore
from segmentstore_fargate.config import StoreConfig
from segmentstore_fargate.garbage import QuietCollector
from segmentstore_fargate.health import Answer, HealthServer, ReplicatedPlace, SettledLatch, json_answer
from segmentstore_fargate.heartbeat import until_answered
from segmentstore_fargate.layout import mark_served, settle_layout, volume_id
from segmentstore_fargate.ledgers import check_containers, ledgers_of
from segmentstore_fargate.log_watch import log_watch
from segmentstore_fargate.membership import Membership, Place
from segmentstore_fargate.metrics_page import CONTENT_TYPE, MeasuredStore, MetricsPage
from segmentstore_fargate.minute_metrics import MinuteMetrics, MinuteReport
from segmentstore_fargate.open_files import connections_within
from segmentstore_fargate.openings import OPENINGS_SHARE
from segmentstore_fargate.registration import own_task
from segmentstore_fargate.replication import Replication
from segmentstore_fargate.restart_policy import JOURNAL_FAILED
from segmentstore_fargate.scaling import StoreScalingReports
from segmentstore_fargate.tls_upkeep import TlsUpkeep
from segmentstore_fargate.token_upkeep import TokenUpkeep

_log = logging.getLogger(__name__)

LISTEN_AFTER_S: Final = 10.0
"""The port opens after so long, so that clients reach the other containers while one is slow to recover."""


class SegmentStoreProcess:
    """A segment store process: starts, serves until `stop` or a fatal failure, and stops.

    `journal_unusable` says whether a start failed because its journal could not be read or written.
    """

    def __init__(self, config: StoreConfig, environment: Mapping[str, str]) -> None:
        self._config = config
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._started = False
        self.journal_unusable = False
        self._membership: Membership | None = None
        self._ticks = PeriodicTask(self._tick, retry_first_s=TICK_S)
        self._clock = SystemClock()
        settle_layout(config.data_dir, config.layout, config.copies)
        self._disk = DiskJournalDisk(config.journal_dir)
        measured_disk = MeasuredJournalDisk(self._disk, self._clock)
        self._journal = Journal(
            measured_disk,
            lambda: secrets.randbits(64),
            self._loop.call_soon_threadsafe,
            file_bytes=config.journal_file_bytes,
            logs_on_volume=len(config.layout),
            copies=config.copies,
            on_failure=self._journal_failed,
        )
        self._metadata_store = MeasuredMetadataStore(DynamoMetadataStore(config.metadata_table), self._clock)
        self._tls = TlsUpkeep(config.tls, self._metadata_store, self._clock)
        self._aws_session = botocore.session.get_session()
        self._s3_storages: list[S3ChunkStorage] = []
        measured_chunks = self._measured_s3()
        # With threads and connections of its own: an acknowledgement never waits for an upload to tier 2.
        measured_logs = self._measured_s3() if config.classes.s3_containers else None
        self._scaling_reports = StoreScalingReports(config.scaling_reports_queue_url)
        self._replication = self._replicate() if config.copies > 1 else None
        self._store = SegmentStore(
            ledgers_of(config.classes, self._journal, self._replication, measured_logs, self._metadata_store),
            config.cache_bytes - config.limits.read_cache_bytes - config.receive_bytes,
            self._clock,
            self._metadata_store,
            measured_chunks,
            container_count=config.classes.store_containers,
            s3_containers=config.classes.s3_containers,
            limits=config.limits,
            table_limits=config.table_limits,
            on_failure=self._container_failed,
            scaling_reports=self._scaling_reports,
            needs_tokens=config.token_keys is not None,
        )
        self._store.pool.prepare_arenas(prepare_in_thread)
        self._tokens = (
            TokenUpkeep(config.token_keys, self._store.tokens) if config.token_keys and self._store.tokens else None
        )
        place = ReplicatedPlace(
            self._metadata_store, config.store_id, config.container_count, lambda: self._store.owned
        )
        find_reasons = self._find_unsettled if self._replication is None else place.find_reasons
        self._latch = SettledLatch(config.data_dir, config.process, find_reasons)
        self._listener = self._make_listener()
        measured = MeasuredStore(
            self._store,
            self._listener,
            self._journal,
            measured_disk.metrics,
            measured_chunks,
            self._metadata_store,
            lambda: self._serves,
            lambda: self._scaling_reports.dropped,
            self._replication.measured if self._replication is not None else None,
            measured_logs,
            self._tls,
            config.zone,
        )
        self._metrics = MetricsPage(measured)
        self._minute_report = self._report_minutes(measured)
        self._health = HealthServer({"/health": self._alive, "/ready": self._ready, "/metrics": self._metrics_answer})
        self._log_watch = log_watch(self._store, self._replication.ledgers if self._replication is not None else None)
        self._collector = QuietCollector(lambda: self._journal.synced_commits, lambda: bool(self._store.openings))

    def _make_listener(self) -> WireListener:
        config = self._config
        return WireListener(
            self._store,
            lambda: secrets.randbits(128),
            connections_max=connections_within(config.connections_max),
            connections_per_address_max=config.connections_per_address_max,
            reserved_networks=config.reserved_networks,
            receive_bytes=config.receive_bytes,
            tls=self._tls.clients,
            networks=config.zone_networks,
        )

    def _report_minutes(self, measured: MeasuredStore) -> MinuteReport | None:
        """What writes metrics for CloudWatch among the log lines; None where no service searches them."""
        service = self._config.metrics_service
        if self._config.log_format != "json" or not service:
            return None
        return MinuteReport(MinuteMetrics(measured, self._clock).read, service, self._clock, log_lines.write_document)

    async def start(self) -> str:
        """Register, read the journal, claim, recover and listen. Returns the `ready` line.

        The socket is bound before the claims, which contain its port. Each container is served as soon as it is
        recovered. This returns when each container that can be opened now is served or has failed once. The port opens
        then, or after LISTEN_AFTER_S. It does not open earlier, because reader groups of Pravega's Rust client end for
        good when a table request gets WrongHost, while a closed port makes the client connect again.

        Raises:
            HeadraceError: the log, the metadata store or the platform does not allow it.
            OSError: a port is taken.
        """
        config = self._config
        if self._minute_report is not None:
            self._minute_report.start()  # also while the start waits for something, which this shows
        await self._tls.start()  # first: no container waits for a store that can serve no client
        if self._tokens is not None:
            await self._tokens.start()
        bound = bind_socket(config.listen_host, config.listen_port)
        replication = self._replication
        try:
            replica_port = replication.bind() if replication else 0
            membership = await self._register(bound.getsockname()[1], replica_port)
            await self._start_journal()
            mark_served(config.data_dir)
            if replication is not None:
                await self._start_replication(replication, membership)
        except BaseException:
            bound.close()
            raise
        self._latch.start()  # before containers are opened: the first store of a deployment waits for others
        joining = asyncio.ensure_future(membership.join())
        try:
            await asyncio.wait([joining], timeout=LISTEN_AFTER_S)
            await self._listener.start(bound)
            await joining
        finally:
            joining.cancel()
        self._collector.start()
        self._log_watch.start()
        self._scaling_reports.start()
        self._started = True
        self._ticks.start()
        containers = ",".join(map(str, sorted(self._store.owned)))
        own = membership.identity
        return f"ready store={own.store_id} host={own.host} port={own.port} containers={containers}"

    async def _start_journal(self) -> None:
        try:
            await asyncio.to_thread(self._journal.start)
        except (CorruptError, OSError):
            self.journal_unusable = True
            raise

    def _measured_s3(self) -> MeasuredChunkStorage:
        self._s3_storages.append(S3ChunkStorage(self._config.chunk_bucket, s3_client(self._aws_session)))
        return MeasuredChunkStorage(self._s3_storages[-1], self._clock)

    def _replicate(self) -> Replication:
        return Replication(
            self._config,
            self._environment,
            self._disk,
            self._journal,
            self._metadata_store,
            self._clock,
            self._replica_damaged,
            self._store_ended,
            self._tls,
        )

    async def _start_replication(self, replication: Replication, membership: Membership) -> None:
        """Serve the own replicas. Their id is known only now if the journal is new, or replaced a damaged one."""
        replica = await replication.start()
        await until_answered("lease", lambda: membership.heartbeat.name_replica(replica.hex()))
        await until_answered("leases", replication.watch_peers)

    def _replica_damaged(self, container: int, error: Exception) -> None:
        """An entry on this volume has changed. The next start finds out which ones, and gets them from other stores."""
        _log.critical("event=replica_damaged container=%d error=%r", container, error)
        self._fail()

    async def _store_ended(self) -> None:
        """The lease of another store was ended: its containers may be this store's now."""
        if self._membership is not None:
            await self._membership.heartbeat.beat()

    async def _register(self, port: int, replica_port: int) -> Membership:
        """Open the health port, and register this store's lease.

        This comes before the journal is read, which may take long: other stores wait only for a store with a lease.
        """
        config, replication = self._config, self._replication
        if config.health_port is not None:
            await self._health.start(config.listen_host, config.health_port)
            _log.info("event=health_open store=%s port=%d", config.store_id, self._health.port)
        await until_answered("containers", lambda: asyncio.to_thread(self._check_containers))
        task = await until_answered("task", lambda: asyncio.to_thread(own_task, self._environment))
        identity = StoreLease(
            config.store_id,
            config.advertised_host or (task.address if task else config.listen_host),
            port,
            config.zone,
            config.capacity,
            volume_id(config.data_dir, secrets.token_hex(16)),
            task.arn if task else "",
            # Other stores have the logs, too: no store has to wait for this one.
            0 if replication else int(config.take_over_after_s * 1000),
            replica_id=replication.known_replica if replication else "",
            replica_port=replica_port,
            revision=task.revision if task else 0,
            replica_protocol=REPLICA_PROTOCOL if replication else FIRST_PROTOCOL,
            tls_name=self._tls.announced_name,
            release=RELEASE,
        )
        place = Place(config.container_count, config.containers)
        self._membership = Membership(
            self._store,
            self._metadata_store,
            self._clock,
            identity,
            place,
            self._membership_failed,
            replication.status if replication else ReplicationStatus,
            config.external,
        )
        await self._membership.register()
        return self._membership

    def _check_containers(self) -> None:
        """Check the numbers of containers, before the lease: others would map segments to wrong containers."""
        check_containers(self._metadata_store, self._config.classes)

    async def ended(self) -> int:
        """Wait for the end of the process. Returns the exit code."""
        return await asyncio.shield(self._ended)

    def request_stop(self) -> bool:
        """Request a graceful shutdown. Returns False if it was requested before or the process has failed."""
        if self._ended.done():
            return False
        self._ended.set_result(0)
        return True

    async def stop(self) -> None:
        """Accept no more requests, reply to accepted ones, flush what the deadline allows, and close the journal."""
        _log.info("event=stopping store=%s", self._config.store_id)
        deadline_s = self._clock.monotonic_s() + self._config.stop_deadline_s
        self._collector.stop()
        await self._tls.stop()
        if self._tokens is not None:
            await self._tokens.stop()
        await self._log_watch.stop()
        await self._latch.stop()
        await self._ticks.stop()
        if self._membership is not None:
            await self._membership.announce_leaving()
            await self._membership.finish_openings(self._config.stop_deadline_s * OPENINGS_SHARE)
        await self._listener.drain(max(0.0, deadline_s - self._clock.monotonic_s()))
        await self._listener.stop()
        await self._store.close(max(0.0, deadline_s - self._clock.monotonic_s()))
        await self._scaling_reports.stop()
        if self._replication is not None:
            await self._replication.leave(deadline_s)
        if self._membership is not None:
            await self._membership.end()
        if self._replication is not None:
            await self._replication.stop()
        await self._health.stop()
        if self._minute_report is not None:
            await self._minute_report.stop()
        await asyncio.to_thread(self._journal.close)
        for storage in self._s3_storages:
            await asyncio.to_thread(storage.close)
        self._disk.close()
        _log.info("event=stopped store=%s", self._config.store_id)

    def _container_failed(self, container: SegmentContainer, error: HeadraceError) -> None:
        """A container that has stopped is opened from its log again; a journal that has failed ends the process."""
        if self._journal.failure is None and self._membership is not None and not isinstance(error, FencedError):
            self._membership.container_failed(container.container, error)

    def _membership_failed(self, error: HeadraceError) -> None:
        _log.critical("event=membership_failed code=%s error=%r", error.specific_code, error.message)
        self._fail()

    def _journal_failed(self) -> None:
        self._fail(JOURNAL_FAILED)

    def _fail(self, code: int = 1) -> None:
        self._listener.drop_all()
        if not self._ended.done():
            self._ended.set_result(code)

    async def _tick(self) -> Rest:
        self._store.tick_rates()
        return Rest.fixed(TICK_S)

    async def _find_unsettled(self) -> list[str]:
        """Why this process, which has the only copy of its logs, has not taken its place yet."""
        return [] if self._serves else ["containers of this store are not served yet"]

    @property
    def _serves(self) -> bool:
        """Whether every container of this store is served under a valid lease."""
        complete = self._membership is not None and not self._membership.missing and self._store.gate.is_open
        return self._started and not self._ended.done() and complete

    def _alive(self) -> Answer:
        """The page /health. A reply shows that the event loop runs; the status also shows whether the journal works."""
        well = self._journal.failure is None
        return json_answer(well, {"status": "ok" if well else "failing", "store": self._config.store_id})

    def _ready(self) -> Answer:
        status = "ready" if self._serves else "stopping" if self._ended.done() else "starting"
        if status == "starting" and self._started:
            status = "incomplete"
        return json_answer(
            self._serves,
            {"status": status, "store": self._config.store_id, "containers": sorted(self._store.owned)}
            | _openings_shown(self._store.openings),
        )

    def _metrics_answer(self) -> Answer:
        return Answer(True, CONTENT_TYPE, self._metrics.render())


def _openings_shown(openings: Mapping[int, ContainerOpening]) -> dict[str, Any]:
    """The part of `/ready` about containers that are not served yet; empty if there are none."""
    shown: dict[str, Any] = {}
    for container, opening in sorted(openings.items()):
        progress = opening.progress
        kind = "quarantined" if progress.quarantined else "opening"
        shown.setdefault(kind, {})[str(container)] = {"step": str(progress.step), "error": progress.error}
    return shown

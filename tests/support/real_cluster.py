"""The client's whole world in one process: handlers, controller, workflows and a segment store that is served on TCP.

Only the adapters are those in memory. The store can be stopped without warning and is recovered from its journal.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import random
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from functions import wiring
from headrace.adapters import audit_log
from headrace.adapters.gateway_events import HttpRequest, match_route, request_event, response_of
from headrace.adapters.memory.chunk_storage import MemoryChunkLinks, MemoryChunkStorage
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.adapters.system_clock import SystemClock
from headrace.adapters.tcp.arrivals import ServerTls
from headrace.adapters.tcp.listener import WireListener, bind_socket
from headrace.adapters.tcp.segment_stores import TcpSegmentStores
from headrace.adapters.tcp.store_calls import locate_by_claims, no_token
from headrace.adapters.tcp.store_trust import StoreTrust
from headrace.adapters.tcp.tls_contexts import store_contexts
from headrace.adapters.token_keys import KEYS_FILE, InternalToken, token_key_source
from headrace.client import AsyncHeadrace, Headrace, TlsOptions, connect
from headrace.client.loop_thread import LoopThread
from headrace.codec.delegation_tokens import token_keys_text
from headrace.controller.engine import RequestProcessor
from headrace.controller.operations.registry import request_processor
from headrace.deployment_defaults import TOKENS_REQUIRED, TOKENS_VARIABLE
from headrace.local.lambda_host import LambdaHost
from headrace.metadata.cluster_records import claim_body, claim_sort
from headrace.metadata.trust import write_trust
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.tls_modes import TlsMode
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Create, Key, Replace
from headrace.ports.scaling_reports import ScalingReports
from headrace.ports.token_keys import TokenKeySource
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgerStore
from headrace.segmentstore.store import SegmentStore
from headrace.segmentstore.tiering.storage_limits import StorageLimits
from headrace.topology import ROUTES

CONTAINERS = 4
NO_FLUSH = StorageLimits(flush_age_s=1e9, flush_bytes=1 << 40)


class WorkingQueue:
    """A request queue whose consumer is a thread."""

    def __init__(self) -> None:
        self._messages: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work)
        self._processor: RequestProcessor | None = None

    def start(self, processor: RequestProcessor) -> None:
        self._processor = processor
        self._thread.start()

    def send(self, *, group: str, body: Mapping[str, Any], deduplication_id: str) -> None:
        self._messages.put(body)

    def stop(self) -> None:
        self._messages.put(None)
        self._thread.join()

    def _work(self) -> None:
        assert self._processor is not None
        while (message := self._messages.get()) is not None:
            self._processor.process(message)


class RealCluster:
    """One segment store that owns all containers, and the controller over HTTP.

    With `token_keys` the store wants delegation tokens, and with `tls` TLS: `tls_name` is what its claims say.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        scaling_reports: ScalingReports | None = None,
        token_keys: TokenKeySource | None = None,
        tls: ServerTls | None = None,
        tls_name: str = "",
    ) -> None:
        self.tls, self.tls_name = tls, tls_name
        self.zones: Mapping[int, str] = {}
        """What the claims of containers say from the next start of the store on; without one "local"."""
        self.far_reach_stores = False
        """Whether clients that are far reach the stores: else they are given an address at which none listens."""
        self.metadata = MemoryMetadataStore(TornReads(0))
        self.clock = clock or SystemClock()
        self._scaling_reports = scaling_reports
        self.token_keys = token_keys
        self.disk = MemoryJournalDisk()
        self.chunks = MemoryChunkStorage()
        self.queue = WorkingQueue()
        self.thread = LoopThread(asyncio.new_event_loop())
        self.listener: WireListener | None = None
        self.store: SegmentStore | None = None
        self._journal: Journal | None = None
        self._port = 0
        self._closed = bind_socket("127.0.0.1", 0)  # nothing listens, and no other process gets the port
        self._closed_port = self._closed.getsockname()[1]
        self.start_store()
        token = no_token
        if token_keys is not None:
            token = InternalToken(token_keys, self.clock, 600, "test").token
        self.segment_stores = TcpSegmentStores(
            locate_by_claims(self.metadata), CONTAINERS, token=token, trust=StoreTrust(self.metadata)
        )
        self.queue.start(request_processor(self.metadata, self.segment_stores, self.clock, lambda: self.queue))

    def start_store(self) -> None:
        self.thread.run(self._start_store())

    def kill_store(self) -> None:
        """Without a flush, a checkpoint or a word to its clients."""
        self.thread.run(self._kill_store())

    def stop_store(self) -> None:
        """With all bytes in tier 2."""
        self.thread.run(self._kill_store(flush_within_s=60))

    def drop_connections(self) -> None:
        self.thread.run(self._drop_connections())

    def hidden(self, body: bytes) -> bytes:
        """An answer of the functions, with another port than that of the store."""
        return re.sub(rb'"port": ?%d\b' % self._port, b'"port":%d' % self._closed_port, body)

    def close(self) -> None:
        self.queue.stop()
        self.segment_stores.close()
        self.kill_store()
        self.thread.close()
        self._closed.close()

    async def _start_store(self) -> None:
        loop = asyncio.get_running_loop()
        self._journal = Journal(
            self.disk, lambda: random.getrandbits(64), loop.call_soon_threadsafe, file_bytes=4 << 20
        )
        self._journal.start()
        self.store = SegmentStore(
            OneCopyLedgerStore(self._journal),
            16 << 20,
            self.clock,
            self.metadata,
            self.chunks,
            container_count=CONTAINERS,
            block_bytes=64 << 10,
            limits=NO_FLUSH,
            scaling_reports=self._scaling_reports,
            needs_tokens=self.token_keys is not None,
        )
        self._use_token_keys()
        bound = bind_socket("127.0.0.1", self._port)
        self._port = bound.getsockname()[1]
        for container in range(CONTAINERS):
            await self.store.open_container(container, self._claim(container))
        self.listener = WireListener(self.store, lambda: random.getrandbits(128), tls=self.tls)
        await self.listener.start(bound)

    def upkeep_tokens(self) -> None:
        """What a process does each second: uses the current keys, and ends what is not allowed any more."""
        self.thread.run(self._upkeep_tokens())

    async def _upkeep_tokens(self) -> None:
        self._use_token_keys()
        if self.store is not None and self.store.tokens is not None:
            self.store.tokens.end_holds()

    def _use_token_keys(self) -> None:
        if self.store is not None and self.store.tokens is not None and self.token_keys is not None:
            self.store.tokens.use(self.token_keys.keys())

    async def _kill_store(self, flush_within_s: float = 0) -> None:
        assert self.store is not None
        assert self.listener is not None
        assert self._journal is not None
        self.listener.drop_all()
        await self.listener.stop()
        for _ in range(5):  # a connection that was being accepted would survive here, though not the end of a process
            await asyncio.sleep(0)
            self.listener.drop_all()
        await self.store.close(flush_within_s)
        await asyncio.to_thread(self._journal.close)

    async def _drop_connections(self) -> None:
        assert self.listener is not None
        self.listener.drop_all()

    def _claim(self, container: int) -> int:
        key, zone = Key(CLUSTER_PARTITION, claim_sort(container)), self.zones.get(container, "local")
        body = claim_body(ContainerClaim("store-0", "127.0.0.1", self._port, zone, tls_name=self.tls_name))
        record = self.metadata.get(key)
        if record is None:
            self.metadata.write(Create(key, body))
            return 0
        self.metadata.write(Replace(key, body, record.version))
        return record.version + 1


def secure_cluster(monkeypatch: pytest.MonkeyPatch, directory: Path) -> RealCluster:
    """A cluster that wants TLS and tokens, and functions that issue both. Keys and audit lines are in `directory`."""
    from certificates_at_hand import Authority
    from token_clients import KEYS

    authority, clock, name = Authority(), SystemClock(), "store-0.headrace.internal"
    contexts = store_contexts(authority.issue(name), authority.bundle, name)
    keys = directory / "token-keys.json"
    keys.touch(mode=0o600)
    keys.write_text(token_keys_text(KEYS))
    environment = {TOKENS_VARIABLE: TOKENS_REQUIRED, KEYS_FILE: str(keys)}
    for variable, value in (environment | {audit_log.FILE: str(directory / "audit.log")}).items():
        monkeypatch.setenv(variable, value)
    tls = ServerTls(TlsMode.REQUIRED, lambda: contexts.server)
    cluster = RealCluster(clock, token_keys=token_key_source(environment, clock), tls=tls, tls_name=name)
    cluster.metadata.write(write_trust(authority.bundle, None))
    return cluster


def serve_functions(cluster: RealCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions work on this cluster; the caller lets the services be forgotten at the end."""
    monkeypatch.setenv("HEADRACE_CONTAINER_COUNT", str(CONTAINERS))
    wiring.forget_services()
    links = MemoryChunkLinks(cluster.chunks, 60, cluster.clock)
    monkeypatch.setattr(wiring, "metadata_store", lambda: cluster.metadata)
    for name in ("request_queue", "table_queue", "commit_queue", "abort_queue"):
        monkeypatch.setattr(wiring, name, lambda: cluster.queue)
    monkeypatch.setattr(wiring, "segment_stores", lambda: cluster.segment_stores)
    monkeypatch.setattr(wiring, "chunk_links", lambda: links)


@contextmanager
def client_of(cluster: RealCluster) -> Iterator[Headrace]:
    """A client whose HTTP requests are answered by the functions."""
    with connected_to(cluster) as client:
        yield client


def connected_to(
    cluster: RealCluster, tls: TlsOptions | None = None, zone: str | None = None, *, far: bool = False
) -> Headrace:
    """A client as of `client_of`, which the caller closes. One that is far is outside the VPC."""
    return connect("http://controller", transport=transport_to(cluster, far=far), tls=tls, zone=zone)


def connected_async(cluster: RealCluster) -> AsyncHeadrace:
    """A client for a coroutine, which closes it."""
    return AsyncHeadrace("http://controller", transport=transport_to(cluster))


def transport_to(cluster: RealCluster, *, far: bool = False) -> httpx.MockTransport:
    """HTTP requests are answered by the functions."""
    host = LambdaHost(cluster.clock)

    def answer(request: httpx.Request) -> httpx.Response:
        match = match_route(ROUTES, request.method, request.url.raw_path.decode().partition("?")[0])
        assert match is not None, request.url
        headers = tuple(request.headers.items())
        came = HttpRequest(request.method, request.url.raw_path.decode(), headers, request.content, "::1", "HTTP/1.1")
        result = response_of(
            host.invoke(match.route.function, request_event(came, match, "id", cluster.clock.now_ms()))
        )
        body = cluster.hidden(result.body) if far and not cluster.far_reach_stores else result.body
        return httpx.Response(result.status, headers=dict(result.headers), content=body)

    async def answer_in_a_thread(request: httpx.Request) -> httpx.Response:
        # In a context of its own, as a thread of a gateway has it: what `to_thread` inherits would be shared.
        return await asyncio.get_running_loop().run_in_executor(None, contextvars.Context().run, answer, request)

    return httpx.MockTransport(answer_in_a_thread)

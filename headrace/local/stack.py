"""The local stack: it starts its parts in order, checks that each answers, and stops them in the reverse order.

If a part fails to start, the parts that were started before are stopped, and one LocalStackError has the reason.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from headrace import topology
from headrace.adapters import audit_log
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.system_clock import SystemClock
from headrace.console.server import EXTRA_MISSING, ConsoleServer, is_installed
from headrace.local.aws_emulator import READY_PREFIX
from headrace.local.certificates import EXTERNAL_DOMAIN, LocalCertificates, external_environment
from headrace.local.certificates import OFF as TLS_OFF
from headrace.local.data_directory import DataDirectory, World
from headrace.local.event_sources import QueuePoller, ScheduleTimer
from headrace.local.external_ports import ExternalPorts
from headrace.local.failures import EXIT_USAGE, LocalStackError
from headrace.local.http_gateway import HttpGateway
from headrace.local.lambda_host import LambdaHost
from headrace.local.resources import (
    Resources,
    aws_client,
    aws_environment,
    create_resources,
    load_snapshot,
    save_snapshot,
)
from headrace.local.stack_processes import (
    ONE_COPY_NOTE,
    STOP_PATIENCE_S,
    ChildProcess,
    GrpcBridgeProcess,
    SegmentStoreProcess,
    SegmentStoreProcesses,
    StoreStatus,
    check_port,
    replica_settings,
)
from headrace.local.tokens import local_tokens
from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.container_logs import COPIES
from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.model.replication_health import missing_copies, replication_health, serving_zones
from headrace.model.tls_modes import TlsMode
from headrace.ports.clock import Clock
from headrace.wire.connections.blocking import BlockingConnection

# `build/local-stack.json`: the addresses of a running stack, for programs. It exists only while the stack is ready.


class StateFile:
    """The file is replaced as a whole, so that a reader never sees a part of it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, state: dict[str, Any]) -> None:
        """Raises LocalStackError if the file cannot be written."""
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(state, indent=2) + "\n")
            temporary.replace(self.path)
        except OSError as error:
            raise LocalStackError(f"cannot write state file {self.path}: {error.strerror}") from error

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def state(
    endpoints: dict[str, str],
    resources: Resources,
    environment: Mapping[str, str],
    data_dir: Path,
    pids: dict[str, int],
    stores: list[StoreStatus],
    external_ports: Sequence[int] = (),
) -> dict[str, Any]:
    """The content of the file."""
    return {
        "endpoints": endpoints,
        "pid": pids["stack"],
        "awsPid": pids["aws"],
        "grpcPid": pids.get("grpc"),
        "dataDir": str(data_dir),
        "table": resources.table,
        "bucket": resources.bucket,
        "queues": resources.queue_urls,
        "environment": dict(environment),
        "externalPorts": list(external_ports),
        "segmentStores": [
            {
                "id": store.store_id,
                "host": store.host,
                "port": store.port,
                "pid": store.pid,
                "containers": list(store.containers),
                "dataDir": str(store.data_dir),
                "restarts": store.restarts,
            }
            for store in stores
        ],
    }


AWS_READY_TIMEOUT_S = 60.0
AWS_STOP_TIMEOUT_S = 5.0
WORK_STOP_TIMEOUT_S = 10.0
HEALTH_TIMEOUT_S = 10.0
COPIES_PATIENCE_S = 120.0
"""The patience with logs that lack copies while stores are replaced. A store that was away catches up in seconds."""
COPIES_POLL_S = 0.5
NO_AWS_PATIENCE_S = 1.0
"""The patience with stores if the AWS emulator has ended: they cannot write, so more time could save no data."""

FUNCTION_ENVIRONMENT = {
    "POWERTOOLS_SERVICE_NAME": "headrace-local",
    "POWERTOOLS_METRICS_NAMESPACE": "Headrace",
    "POWERTOOLS_METRICS_DISABLED": "true",
    "POWERTOOLS_TRACE_DISABLED": "true",
    "POWERTOOLS_LOG_LEVEL": "WARNING",
}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The options of the user. With port 0 the system chooses; `grpc_port` None means no bridge.

    Without `data_dir` the data are removed when the stack stops. `segment_stores` and `s3_containers` None: as many as
    the data have, 1 and 0 for new data. Without `state_file` it is in the directory of the data.
    """

    data_dir: Path | None
    http_port: int
    grpc_port: int | None
    segment_stores: int | None
    restart: bool
    state_file: Path | None
    s3_containers: int | None = None
    console_port: int | None = None
    """Of the web console, 0 for any free one; None: it is not served."""
    tokens: bool = False
    """Segment stores demand delegation tokens, with keys in the data directory."""
    tls: TlsMode = TlsMode.OFF
    """Whether segment stores demand TLS."""


class LocalStack:
    """One stack; call `start` once and `stop` once. Only one may run in a process: handlers use its environment."""

    def __init__(self, options: StackOptions, say: Say) -> None:
        self._options = options
        self._say = say
        self._clock = SystemClock()
        self._parts = contextlib.ExitStack()
        self._failure: str | None = None
        self._failed = threading.Event()
        self._state_lock = threading.Lock()
        self._is_ready = False
        self._bridge: GrpcBridgeProcess | None = None
        self._console: ConsoleServer | None = None
        self._certificates: LocalCertificates | None = None
        self._external: ExternalPorts | None = None
        self._tls = options.tls
        self._stores_stopped_well = True  # none has run

    def start(self) -> None:
        """Start all parts and return when each answers.

        Raises:
            LocalStackError: a part did not start; all other parts were stopped.
        """
        try:
            self._start()
        except (BotoCoreError, ClientError) as error:
            self.stop()
            raise LocalStackError(f"a call of the AWS emulator failed: {error}") from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all parts in the reverse order of the start. Data are kept if the user has named a directory."""
        with self._state_lock:
            self._is_ready = False
        self._parts.close()

    def wait_for_failure(self, timeout_s: float | None = None) -> str | None:
        """Wait for a failure; return its reason, or None when the time is over."""
        self._failed.wait(timeout_s)
        return self._failure

    def _start(self) -> None:
        self.gateway = HttpGateway(self._clock, self._options.http_port)
        self._parts.callback(self.gateway.stop)
        if self._options.grpc_port is not None:
            check_port(self._options.grpc_port)
        if self._options.console_port is not None:
            self._bind_console(self._options.console_port)
        data = DataDirectory(self._options.data_dir)
        self._parts.callback(data.close)
        self.world = data.open(self._options.segment_stores, self._options.s3_containers)
        self._state_path = self._options.state_file or data.path / "local-stack.json"
        self._state_file = StateFile(self._state_path)
        if self.world.note:
            self._say(f"note: {self.world.note}")
        self._tokens = local_tokens(data.path, self._clock, wanted=self._options.tokens)
        self._start_aws(self.world)
        if not data.is_temporary:
            # This runs after the stores have stopped, so that the snapshot has all that they have written.
            self._parts.callback(self._save_aws)
        self._start_stores(self.world)
        self._start_functions()
        self._start_bridge(self.world)
        self._check_health()
        if self._console is not None:
            self._console.start()  # its own thread imports the rest, so that the stack is not ready later for it
        self._publish_state(first=True)
        self._parts.callback(self._state_file.remove)
        self._announce(data)

    def _start_aws(self, world: World) -> None:
        environment = dict(os.environ) | aws_environment("")
        emulator = ChildProcess(
            "AWS emulator", "headrace.local.aws_emulator", (), environment, world.logs_dir / "aws.log"
        )
        self._aws = emulator
        self._parts.callback(emulator.stop, AWS_STOP_TIMEOUT_S)
        self._load_functions()  # while the emulator starts: each takes a second or two
        endpoint = emulator.await_ready(AWS_READY_TIMEOUT_S).removeprefix(READY_PREFIX)
        self.resources: Resources = create_resources(endpoint)
        if world.is_continued:
            load_snapshot(self.resources, world.snapshot_dir)
        self._parts.enter_context(_process_environment(self._environment()))
        threading.Thread(target=self._watch_aws, args=(emulator,), name="watch-aws", daemon=True).start()

    def _environment(self) -> dict[str, str]:
        """The variables of functions, stores and the bridge."""
        containers = {"HEADRACE_S3_CONTAINERS": str(self.world.s3_containers)}
        audit = {audit_log.FILE: str(self._audit_file)}
        external = {"HEADRACE_EXTERNAL_DOMAIN": EXTERNAL_DOMAIN if self._tls is TlsMode.REQUIRED else ""}
        # Only the stores have certificates: see `_store_environment`.
        return self.resources.environment() | containers | self._tokens.environment | TLS_OFF | audit | external

    @property
    def _audit_file(self) -> Path:
        """The audit lines of the functions and of the bridge."""
        return self.world.logs_dir / "audit.log"

    def _watch_aws(self, emulator: ChildProcess) -> None:
        code = emulator.wait()
        if self._is_ready:
            self._fail(f"the AWS emulator ended with code {code}")

    def _start_stores(self, world: World) -> None:
        count = world.segment_stores
        if count < COPIES:
            self._say(ONE_COPY_NOTE)
        self._replica_settings = replica_settings(count)
        self._prepare_tls()
        self.stores = SegmentStoreProcesses(
            [
                SegmentStoreProcess(
                    index,
                    count,
                    world.directory,
                    self._store_environment(index),
                    self._clock,
                    restart=self._options.restart,
                    on_change=self._publish_state,
                    on_failure=self._fail,
                )
                for index in range(count)
            ]
        )
        self._stores_stopped_well = False
        self._parts.callback(self._stop_stores)
        self.stores.start()

    def _prepare_tls(self) -> None:
        """Make what the mode needs and the stack does not have yet: certificates, and ports for clients outside."""
        world, count = self.world, self.world.segment_stores
        if self._tls.accepts_tls and self._certificates is None:
            self._certificates = LocalCertificates(
                [world.directory / f"store-{index}" for index in range(count)], world.directory / "bridge", self._clock
            )
            self._certificates.start(DynamoMetadataStore(self.resources.table))
            self._parts.callback(self._certificates.stop)
        if self._tls is TlsMode.REQUIRED and self._external is None:
            self._external = ExternalPorts(count, lambda: [(each.host, each.port) for each in self.stores.statuses])
            self._parts.callback(self._external.stop)
            self._external.start()

    def _store_environment(self, index: int) -> dict[str, str]:
        """All variables of a store."""
        environment = {**os.environ, **self._environment(), **self._replica_settings}
        if self._certificates is not None and self._tls.accepts_tls:
            environment |= self._certificates.environment(index, self._tls)
        if self._external is not None and self._tls is TlsMode.REQUIRED:
            environment |= external_environment(index, self._external.ports[index])
        return environment

    def change_security(self, tls: TlsMode, *, tokens: bool) -> None:
        """Change what the stores demand while clients go on, in the order of a deployment.

        Keys, certificates and functions come first, then one store after the other, then the bridge. If tokens are
        turned off, functions come after the stores: a store that still demands tokens refuses clients without one.
        A store gets another port. The next one is not stopped before each log has its copies again.

        Raises:
            LocalStackError: a part does not start again, or the copies are not there in time.
        """
        functions_come_last = self._tokens.directory is not None and not tokens
        self._tls = tls
        self._tokens = local_tokens(self.world.directory.parent, self._clock, wanted=tokens)
        self._prepare_tls()
        if not functions_come_last:
            self._renew_functions()
        for index in range(self.world.segment_stores):
            self._await_copies()
            self.stores.replace(index, self._store_environment(index))
        self._await_copies()
        if functions_come_last:
            self._renew_functions()
        if self._bridge is not None:
            self._bridge.stop()
            self._start_bridge(self.world)
        self._check_health()
        self._publish_state()

    def _renew_functions(self) -> None:
        from functions import wiring  # as in `_start_functions`

        os.environ.update(self._environment())
        wiring.forget_services()

    def _await_copies(self) -> None:
        """Wait until each log has its copies, as a deployment does between two zones. Each store is a zone here."""
        count = self.world.segment_stores
        deadline_s = self._clock.monotonic_s() + COPIES_PATIENCE_S
        while count >= COPIES and (missing := self._missing_copies(count)):
            if self._clock.monotonic_s() > deadline_s:
                raise LocalStackError(f"the logs do not have their copies again: {'; '.join(missing)}")
            if self._failed.wait(COPIES_POLL_S):
                raise LocalStackError(self._failure or "the stack has failed")

    def _missing_copies(self, stores: int) -> list[str]:
        records = DynamoMetadataStore(self.resources.table)
        leases = [stored.lease for stored in ClusterRecords(records).leases()]
        logs = ContainerLogRecords(records).read_many(range(topology.CONTAINER_COUNT))
        serving = {replica: replica.hex() for replica in serving_zones(leases, self._clock.now_ms())}
        return missing_copies(
            {container: stored.log for container, stored in logs.items()},
            serving,
            replication_health(leases).blocked,
            stores,
        )

    def _stop_stores(self) -> None:
        self._stores_stopped_well = self.stores.stop(STOP_PATIENCE_S if self._aws.is_running else NO_AWS_PATIENCE_S)

    def _load_functions(self) -> None:
        """Import the handlers. They read the names and addresses of resources only when they are called."""
        self._parts.enter_context(_process_environment(FUNCTION_ENVIRONMENT))
        self.functions = LambdaHost(self._clock)

    def _start_functions(self) -> None:
        from functions import wiring  # after `_load_functions`, because its imports read the environment

        wiring.forget_services()
        self._parts.callback(wiring.forget_services)
        self._parts.callback(self._stop_background_work)
        self._start_background_work()
        self.gateway.serve(self.functions)
        self._parts.callback(self.gateway.stop)  # a second time, so that the gateway is stopped before the functions

    def _start_background_work(self) -> None:
        sqs = aws_client("sqs", self.resources.endpoint)
        self.pollers = [
            QueuePoller(queue, self.resources.queue_urls[queue.name], sqs, self.functions.invoke)
            for declared in topology.QUEUES
            for queue in (declared, declared.dead_letters)
        ]
        self.timers = [ScheduleTimer(schedule, self.functions.invoke, self._clock) for schedule in topology.SCHEDULES]
        for poller in self.pollers:
            poller.start()
        for timer in self.timers:
            timer.start()

    def _start_bridge(self, world: World) -> None:
        if self._options.grpc_port is None:
            return
        has_tls = self._certificates is not None and self._tls.accepts_tls
        self._bridge = GrpcBridgeProcess(
            self._options.grpc_port if self._bridge is None else self._bridge.port,
            os.environ | (self._certificates.bridge_environment if self._certificates is not None and has_tls else {}),
            world.logs_dir / "grpc.log",
            has_tls=has_tls,
        )
        self._parts.callback(self._bridge.stop)
        self._bridge.start(self._fail)

    def _bind_console(self, port: int) -> None:
        """Takes the port before other parts start, which take longer."""
        if not is_installed():
            self._say(f"note: {EXTRA_MISSING}")
            return
        try:
            self._console = ConsoleServer(self.gateway.url, port=port, network="vpc")
        except InvalidRequestError as error:
            raise LocalStackError(
                f"cannot serve the console: {error.message}; choose another port with --console-port, or "
                "--console-port off",
                exit_code=EXIT_USAGE,
            ) from error
        self._parts.callback(self._console.stop)

    def _stop_background_work(self) -> None:
        stop_together([*self.timers, *self.pollers], WORK_STOP_TIMEOUT_S, self._clock)

    def _save_aws(self) -> None:
        """Save a snapshot, unless a part failed: a world can only be continued after a graceful shutdown of all."""
        if not (self._stores_stopped_well and self._aws.is_running):
            self._say(f"note: {self.world.directory} cannot be continued: not every part was shut down gracefully")
            return
        try:
            save_snapshot(self.resources, self.world.snapshot_dir)
        except (BotoCoreError, ClientError, OSError) as error:
            self._say(f"note: {self.world.directory} cannot be continued: its metadata were not saved: {error}")

    def _check_health(self) -> None:
        """Send every part a request that it can only answer if it works."""
        address = urlsplit(self.gateway.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=HEALTH_TIMEOUT_S)
        try:
            connection.request("GET", "/v1/scopes")
            status = connection.getresponse().status
        except OSError as error:
            raise LocalStackError(f"the HTTP API does not answer: {error}") from error
        finally:
            connection.close()
        if status != http.client.OK:
            raise LocalStackError(f"the HTTP API answers GET /v1/scopes with status {status}")
        aws_client("s3", self.resources.endpoint).head_bucket(Bucket=self.resources.bucket)
        certificates = self._certificates if self._tls.accepts_tls else None
        for index, store in enumerate(self.stores.statuses):
            tls = None if certificates is None else certificates.tls_to(index)
            try:
                BlockingConnection(store.host, store.port, tls=tls, timeout_s=HEALTH_TIMEOUT_S).close()
            except HeadraceError as error:
                raise LocalStackError(f"segment store {store.store_id} does not answer: {error}") from error

    def _publish_state(self, *, first: bool = False) -> None:
        with self._state_lock:
            if not first and not self._is_ready:
                return
            self._is_ready = True
            pids = {"stack": os.getpid(), "aws": self._aws.pid}
            endpoints = {"http": self.gateway.url, "aws": self.resources.endpoint}
            if self._bridge is not None:
                pids["grpc"], endpoints["grpc"] = self._bridge.pid, self._bridge.url
            published = state(
                endpoints,
                self.resources,
                self._environment(),
                self.world.directory,
                pids,
                self.stores.statuses,
                self._external.ports if self._external is not None and self._tls is TlsMode.REQUIRED else (),
            )
            self._state_file.write(published)

    def _announce(self, data: DataDirectory) -> None:
        self._say(f"http      {self.gateway.url}")
        if self._bridge is not None:
            self._say(f"grpc      {self._bridge.url} (for Pravega's own clients)")
        if self._console is not None:
            self._say(f"console   {self._console.address}")
        self._say(f"aws       {self.resources.endpoint} (moto: DynamoDB, SQS, S3)")
        for store in self.stores.statuses:
            self._say(f"{store.store_id:<9} {store.host}:{store.port} pid {store.pid}")
        self._say(f"tokens    {self._tokens.line}")
        self._say(f"tls       {self._tls.value}{' (`headrace trust` prints the CA)' if self._tls.accepts_tls else ''}")
        if self._external is not None:
            ports = ", ".join(map(str, self._external.ports))
            self._say(f"external  {ports} (ports of loopback for clients with --network external)")
        self._say(f"audit     {self._audit_file}")
        if self._bridge is not None and self._tokens.note:
            self._say(self._tokens.note)
        kept = "removed at the end" if data.is_temporary else "kept after a graceful shutdown"
        self._say(f"data      {self.world.directory} ({kept})")
        self._say(f"state     {self._state_path}")
        self._say("next      `headrace quickstart` prints commands to try; Ctrl-C stops the stack")

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._failed.set()


class Worker(Protocol):
    """A part with its own threads."""

    def ask_to_stop(self) -> None:
        """Start no more work; return at once."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Wait for the current work. Return whether it ended in time."""
        ...


def stop_together(workers: Sequence[Worker], timeout_s: float, clock: Clock) -> None:
    """Ask all workers to stop, then wait for each until `timeout_s` is over for all together."""
    for worker in workers:
        worker.ask_to_stop()
    deadline_s = clock.monotonic_s() + timeout_s
    for worker in workers:
        worker.join(max(0.0, deadline_s - clock.monotonic_s()))


@contextlib.contextmanager
def _process_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables in the environment, from which functions and stores read their settings as they do on AWS."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

"""Builds a bridge process: the only module of the bridge that chooses adapters."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from contextlib import suppress
from pathlib import Path

from grpc.aio import ServerInterceptor

from headrace.adapters.audit_log import AuditLog
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.grpc_user_storage import GrpcUserFile, GrpcUserSecret
from headrace.adapters.sqs import SqsRequestQueue, sqs_client
from headrace.adapters.system_clock import SystemClock
from headrace.adapters.tcp.segment_stores import TcpSegmentStores
from headrace.adapters.tcp.store_calls import locate_by_claims, no_token
from headrace.adapters.tcp.store_trust import StoreTrust
from headrace.adapters.token_keys import InternalToken, token_key_source, token_life_s
from headrace.bridge.audit import ANYONE, Audit
from headrace.bridge.authentication import Authentication, ReplyTokens
from headrace.bridge.certificates import ServerCertificate
from headrace.bridge.config import BridgeConfig, UsersConfig
from headrace.bridge.credentials import FILE_REFRESH_S, Credentials, UserSource
from headrace.bridge.reader_group_rpcs import ReaderGroupRpcs, SubscriberRpcs
from headrace.bridge.server import BridgeServer, CallThreads
from headrace.bridge.service import ControllerService, ScopeDeletionRpcs
from headrace.bridge.stream_change_rpcs import StreamChangeRpcs, WatermarkRpcs
from headrace.bridge.table_rpcs import TableRpcs
from headrace.bridge.transaction_rpcs import TransactionRpcs
from headrace.bridge.waiting import Waits
from headrace.controller.services.key_value_table_service import KeyValueTableService
from headrace.controller.services.reader_group_service import ReaderGroupService
from headrace.controller.services.retention_service import SubscriberService
from headrace.controller.services.scope_deletion import ScopeDeletionService
from headrace.controller.services.scope_service import ScopeService
from headrace.controller.services.segment_service import SegmentService
from headrace.controller.services.stream_cut_service import StreamCutService
from headrace.controller.services.stream_ends import WrittenCuts
from headrace.controller.services.stream_service import StreamService
from headrace.controller.services.token_issue import DelegationTokens
from headrace.controller.services.transaction_service import TransactionService
from headrace.controller.services.watermark_service import MarkStreamService, WatermarkService
from headrace.metadata.fixed_settings import FixedSetting, FixedSettingsReader
from headrace.metadata.optimistic_retry import ConflictBackoff
from headrace.metadata.transaction_messages import TransactionQueues
from headrace.model.errors import ThrottledError, UnavailableError

LOOPBACK = "127.0.0.1"
_OWN_NAME = "bridge"
"""The name of the bridge in the tokens that it mints for itself."""


class BridgeProcess:
    """The parts of a bridge; it must be created on the event loop on which it runs."""

    def __init__(self, config: BridgeConfig) -> None:
        self._config = config
        self.port = config.listen_port
        metadata = DynamoMetadataStore(config.metadata_table)
        containers = {
            FixedSetting.CONTAINERS: config.container_count,
            FixedSetting.S3_CONTAINERS: config.s3_containers,
        }
        self._settings = FixedSettingsReader(metadata, containers)
        threads, clock = CallThreads(), SystemClock()
        self._keys = token_key_source(config.token_environment, clock)
        life_s = token_life_s(config.token_environment)
        internal = no_token if self._keys is None else InternalToken(self._keys, clock, life_s, _OWN_NAME).token
        self._stores = TcpSegmentStores(
            locate_by_claims(metadata),
            config.container_count,
            config.s3_containers,
            token=internal,
            trust=StoreTrust(metadata),
        )
        waits, sqs = Waits(threads.run, config.stream_deadline_s), sqs_client()
        requests = SqsRequestQueue(config.requests_queue_url, sqs)
        tables = KeyValueTableService(metadata, SqsRequestQueue(config.tables_queue_url, sqs), clock)
        backoff = ConflictBackoff(time.sleep, random.random)
        scopes = ScopeService(metadata)
        streams = StreamService(metadata, requests, clock, backoff, config.s3_containers)
        acceptance = streams.acceptance
        segments = SegmentService(
            metadata, self._stores, lambda: acceptance, config.container_count, config.s3_containers
        )
        service = ControllerService(
            scopes,
            streams,
            segments,
            waits,
            lambda: (config.advertised_host, self.port),
            names_stores=config.tls.source is not None,
            network=config.network,
            store_name=config.store_name,
        )
        queues = TransactionQueues(
            SqsRequestQueue(config.commits_queue_url, sqs_client()),
            SqsRequestQueue(config.aborts_queue_url, sqs_client()),
        )
        check_written = WrittenCuts(self._stores).check
        groups = ReaderGroupService(metadata, requests, clock, check_written)
        # An rpc of a later part replaces the one of the same name in an earlier part.
        parts = (
            service,
            WatermarkRpcs(WatermarkService(metadata), MarkStreamService(metadata, self._stores), service.rpcs()),
            StreamChangeRpcs(streams, StreamCutService(metadata, self._stores, segments), waits),
            ScopeDeletionRpcs(scopes, ScopeDeletionService(metadata, requests, clock), waits),
            SubscriberRpcs(SubscriberService(metadata, clock, check_written), groups),
            ReaderGroupRpcs(groups, waits),
            TableRpcs(tables, waits),
            TransactionRpcs(
                TransactionService(metadata, self._stores, queues, clock, secrets.randbits, backoff), waits
            ),
        )
        self._users = None if config.users is None else _user_source(config.users)
        self._credentials = None if self._users is None else Credentials(self._users.users, clock.monotonic_s)
        principal = "" if config.users is not None else ANYONE
        self._audit = Audit(AuditLog(config.audit_file).write, clock, principal)
        interceptors: list[ServerInterceptor] = [self._audit]
        if self._credentials is not None:
            tokens = ReplyTokens(DelegationTokens(self._keys, clock, life_s), tables)
            interceptors.append(Authentication(self._credentials, tokens, threads.run))
        rpcs = {name: rpc for part in parts for name, rpc in part.rpcs().items()}
        self._server = BridgeServer(rpcs, threads, interceptors)
        tls = config.tls
        self._certificate = None if tls.source is None else ServerCertificate(tls.source, metadata, tls.name, clock)

    async def start(self) -> str:
        """Listen, and return the line with the address.

        Raises:
            InvalidRequestError: a port cannot be bound.
            IllegalStateError: the deployment is being restored, or was started with other numbers of containers.
            HeadraceError: the users, the token keys or the certificate are needed and cannot be read.
        """
        with suppress(UnavailableError, ThrottledError):  # it starts without AWS, and its calls fail
            await asyncio.to_thread(self._settings.check)
        if self._keys is not None:
            await asyncio.to_thread(self._keys.keys)
        if self._users is not None:
            await self._users.start()
        credentials = None if self._certificate is None else await self._certificate.start()
        self.port = self._server.listen(self._config.listen_host, self._config.listen_port, credentials)
        if self._config.health_port:
            self._server.listen(LOOPBACK, self._config.health_port)
        await self._server.start()
        return f"ready grpc host={self._config.listen_host} port={self.port}"

    async def stop(self) -> None:
        """Serve until clients are gone if that is wanted, and then wait for running calls until the deadline."""
        await self._server.drain(self._config.drain_s)
        await self._server.stop(self._config.stop_deadline_s)
        await self._audit.close()
        if self._certificate is not None:
            await self._certificate.stop()
        if self._users is not None:
            self._users.stop()
        if self._credentials is not None:
            self._credentials.close()
        self._stores.close()


def _user_source(config: UsersConfig) -> UserSource:
    if config.file:
        return UserSource(GrpcUserFile(Path(config.file)), FILE_REFRESH_S)
    return UserSource(GrpcUserSecret(config.secret))

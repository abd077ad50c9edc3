"""The gRPC bridge over memory adapters, asked over a real gRPC connection."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message_factory import GetMessageClass
from stream_world import StreamWorld

from headrace.adapters.token_keys import LIFE_DEFAULT_S
from headrace.bridge.audit import ANYONE, Audit
from headrace.bridge.authentication import Authentication, ReplyTokens
from headrace.bridge.credentials import Credentials
from headrace.bridge.reader_group_rpcs import ReaderGroupRpcs, SubscriberRpcs
from headrace.bridge.server import SERVICE, BridgeServer, CallThreads
from headrace.bridge.service import ControllerService, Rpc, ScopeDeletionRpcs
from headrace.bridge.stream_change_rpcs import StreamChangeRpcs, WatermarkRpcs
from headrace.bridge.table_rpcs import TableRpcs
from headrace.bridge.transaction_rpcs import TransactionRpcs
from headrace.bridge.waiting import Waits
from headrace.codec.audit_lines import AuditLine
from headrace.codec.grpc_users import Users
from headrace.controller.services.retention_service import SubscriberService
from headrace.controller.services.token_issue import DelegationTokens
from headrace.controller.services.watermark_service import MarkStreamService, WatermarkService
from headrace.ports.token_keys import TokenKeySource

_DEADLINE_S = 60.0
"""Far away: what waits here is helped by the test."""


class Bridge:
    """A bridge on an event loop of its own. While a call waits, queued stream requests are worked on, `world.drain`,
    unless `work` is replaced."""

    def __init__(
        self,
        behind: StreamWorld,
        users: Callable[[], Users] | None = None,
        keys: TokenKeySource | None = None,
        *,
        replaced: Mapping[str, Rpc] | None = None,
        audit: list[AuditLine] | None = None,
    ) -> None:
        """With `users`, the bridge authenticates them, and signs tokens with `keys`. `replaced` are other rpcs."""
        self.world = behind
        self._users = users
        self._keys = keys
        self.metadata: tuple[tuple[str, str | bytes], ...] = ()
        self.work: Any = behind.drain
        self.audit: list[AuditLine] = [] if audit is None else audit
        self._replaced = replaced or {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")

    async def _start(self) -> int:
        async def pause(seconds: float) -> None:
            self.work()
            await asyncio.sleep(0)

        threads = CallThreads()
        self.waits = Waits(threads.run, _DEADLINE_S, pause)
        service = ControllerService(
            self.world.scopes, self.world.streams, self.world.segments, self.waits, lambda: ("bridge.test", self.port)
        )
        parts = (
            service,
            WatermarkRpcs(
                WatermarkService(self.world.store),
                MarkStreamService(self.world.store, self.world.segment_stores),
                service.rpcs(),
            ),
            StreamChangeRpcs(self.world.streams, self.world.cuts, self.waits),
            ScopeDeletionRpcs(self.world.scopes, self.world.scope_deletions, self.waits),
            SubscriberRpcs(SubscriberService(self.world.store, self.world.clock), self.world.reader_groups),
            ReaderGroupRpcs(self.world.reader_groups, self.waits),
            TableRpcs(self.world.tables, self.waits),
            TransactionRpcs(self.world.transactions, self.waits),
        )
        principal = ANYONE if self._users is None else ""
        self._lines = Audit(self.audit.append, self.world.clock, principal)
        interceptors: list[grpc.aio.ServerInterceptor] = [self._lines]
        if self._users is not None:
            self.credentials = Credentials(self._users, self.world.clock.monotonic_s)
            tokens = ReplyTokens(DelegationTokens(self._keys, self.world.clock, LIFE_DEFAULT_S), self.world.tables)
            interceptors.append(Authentication(self.credentials, tokens, threads.run))
        rpcs = {name: rpc for part in parts for name, rpc in part.rpcs().items()}
        self.server = BridgeServer({**rpcs, **self._replaced}, threads, interceptors)
        port = self.server.listen("127.0.0.1", 0)
        await self.server.start()
        return port

    def log_in(self, name: str, password: str) -> None:
        """The later calls are those of this user."""
        self.metadata = (("authorization", f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"),)

    def call(self, rpc: str, request: Any) -> Any:
        """The reply; raises grpc.RpcError for a status that is not OK."""
        return self.begin(rpc, request).result()

    def begin(self, rpc: str, request: Any) -> Any:
        """The call that is under way."""
        method = SERVICE.methods_by_name[rpc]
        ask = self.channel.unary_unary(
            f"/{SERVICE.full_name}/{rpc}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return ask.future(request, metadata=self.metadata)

    def raw(self, rpc: str, request: bytes) -> bytes:
        """As `call`, with bytes."""
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(f"/{SERVICE.full_name}/{rpc}")
        return ask(request, metadata=self.metadata)

    def refused(self, rpc: str, request: Any) -> grpc.StatusCode:
        """The status of a call that must not succeed."""
        with pytest.raises(grpc.RpcError) as raised:
            self.raw(rpc, request) if isinstance(request, bytes) else self.call(rpc, request)
        code: grpc.StatusCode = raised.value.code()
        return code

    def stop(self) -> None:
        """End calls that are under way, as a bridge does at its deadline."""

        async def stop() -> None:
            await self.server.stop(0)
            await self._lines.close()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()

    def close(self) -> None:
        self.channel.close()
        self.stop()
        if self._users is not None:
            self.credentials.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

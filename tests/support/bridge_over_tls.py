"""A gRPC bridge with a certificate, and clients that check it, over real connections."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.system_clock import SystemClock
from headrace.bridge import controller_pb2 as pb
from headrace.bridge.certificates import ServerCertificate
from headrace.bridge.server import CONNECTION_AGE_S, SERVICE, BridgeServer, CallThreads
from headrace.certificates.profile import authority_certificate, issue_leaf, pem
from headrace.codec.certificates import LeafSecret, TrustBundle
from headrace.metadata.trust import find_trust, write_trust
from headrace.model.certificate_authorities import LEAF_LIFE_S

NAME = "controller.headrace.internal"
CALL = f"/{SERVICE.full_name}/getControllerServerList"


class Issuer:
    """An authority, and what it issues for the bridge."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = authority_certificate(self._key, int(time.time()) - 30 * 86_400)
        self.pem = pem(self._certificate)

    def issue(self, name: str = NAME, *, left_s: float = LEAF_LIFE_S) -> LeafSecret:
        """A certificate with so many seconds left."""
        made_s = int(time.time() + left_s) - LEAF_LIFE_S
        return issue_leaf(self._certificate, self._key, [name], made_s, is_client=False)


class Source:
    """`LeafSecretSource` in memory."""

    def __init__(self, secret: LeafSecret) -> None:
        self.secret = secret
        self.error: Exception | None = None

    def read(self) -> LeafSecret:
        if self.error is not None:
            raise self.error
        return self.secret


class TlsBridge:
    """A server on an event loop of its own, which trusts `issuer`. `answer` is what each call waits for."""

    def __init__(
        self,
        issuer: Issuer,
        source: Source,
        answer: Callable[[], Awaitable[None]] | None = None,
        connection_age_s: float = CONNECTION_AGE_S,
    ) -> None:
        self._connection_age_s = connection_age_s
        self.issuer = issuer
        self.store = MemoryMetadataStore()
        self.trust(issuer)
        self.certificate = ServerCertificate(source, self.store, NAME, SystemClock())
        self._answer = answer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self.port, self.health_port = self.run(self._start())
        except BaseException:
            self._end()
            raise

    def run(self, work: Any) -> Any:
        """Run something on the loop of the bridge."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def trust(self, *issuers: Issuer) -> None:
        """Publish the authorities."""
        stored = find_trust(self.store)
        version = None if stored is None else stored.version
        self.store.write(write_trust(TrustBundle(tuple(each.pem for each in issuers)), version))

    async def _start(self) -> tuple[int, int]:
        async def controllers(request: Any) -> Any:
            if self._answer is not None:
                await self._answer()
            return pb.ServerResponse()

        def refuse(request: Any) -> Any:
            raise AssertionError("no test calls it")

        rpcs: Any = {method.name: refuse for method in SERVICE.methods} | {"getControllerServerList": controllers}
        self.server = BridgeServer(rpcs, CallThreads(), connection_age_s=self._connection_age_s)
        ports = self.server.listen("127.0.0.1", 0, await self.certificate.start()), self.server.listen("127.0.0.1", 0)
        await self.server.start()
        return ports

    def channel(self, issuer: Issuer | None = None, name: str = NAME) -> grpc.Channel:
        """A new connection of a client that trusts the issuer and expects the name."""
        return channel_to([self.port], issuer or self.issuer, name)

    def stop(self, deadline_s: float = 0) -> None:
        self.run(self.server.stop(deadline_s))

    def close(self) -> None:
        self.stop()
        self._end()

    def _end(self) -> None:
        self.run(self.certificate.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Balancer:
    """Passes TCP through to one of its targets, as a network load balancer: only new connections go elsewhere."""

    def __init__(self, targets: list[int]) -> None:
        self._targets = list(targets)
        self._count = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port = int(self._server.sockets[0].getsockname()[1])

    def deregister(self, target: int) -> None:
        """Send no new connections there. Those of now stay."""
        self._targets.remove(target)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._pass, "127.0.0.1", 0)

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self._targets[self._count % len(self._targets)]
        self._count += 1
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
    except OSError:
        return  # the other end has gone
    finally:
        target.close()


def channel_to(ports: list[int], issuer: Issuer, name: str = NAME) -> grpc.Channel:
    """A client of several bridges behind one name, as DNS would give their addresses."""
    options = (
        ("grpc.ssl_target_name_override", name),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    )
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    return grpc.secure_channel(f"ipv4:{addresses}", grpc.ssl_channel_credentials(issuer.pem.encode()), options)


def call(channel: grpc.Channel, timeout_s: float = 20) -> None:
    """One call; raises grpc.RpcError."""
    ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CALL)
    ask(b"", timeout=timeout_s)

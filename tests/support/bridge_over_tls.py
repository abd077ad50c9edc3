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
from headrace.bridge import controller_pb2 as pb
from headrace.bridge.certificates import ServerCertificate
from headrace.bridge.server import SERVICE, BridgeServer, CallThreads
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

    def __init__(self, issuer: Issuer, source: Source, answer: Callable[[], Awaitable[None]] | None = None) -> None:
        self.issuer = issuer
        self.store = MemoryMetadataStore()
        self.trust(issuer)
        self.certificate = ServerCertificate(source, self.store, NAME, refresh_s=1e6)
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
        self.server = BridgeServer(rpcs, CallThreads())
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
        async def stop() -> None:
            self.certificate.stop()
            await asyncio.sleep(0)  # the cancelled task ends

        self.run(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


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

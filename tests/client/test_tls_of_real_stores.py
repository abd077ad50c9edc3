"""Clients of a real store that wants TLS: what works without a setting, and what an untrusted store looks like."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificates_at_hand import Authority
from real_cluster import RealCluster, client_of, connected_to, serve_functions

from functions import wiring
from headrace.adapters.tcp import store_trust
from headrace.adapters.tcp.arrivals import ServerTls
from headrace.adapters.tcp.segment_stores import TcpSegmentStores
from headrace.adapters.tcp.store_calls import locate_by_claims
from headrace.adapters.tcp.store_trust import StoreTrust
from headrace.adapters.tcp.tls_contexts import store_contexts
from headrace.client import InvalidRequestError, ScalingPolicy, TlsOptions, UnavailableError, trust
from headrace.client.reading.segment_reads import SegmentReads
from headrace.codec.certificates import LeafSecret, TrustBundle
from headrace.metadata.trust import find_trust, write_trust
from headrace.model.errors import CorruptError, IllegalStateError
from headrace.model.names import segment_name
from headrace.model.tls_modes import TlsMode
from headrace.wire.connections.asynchronous import open_connection
from headrace.wire.connections.blocking import BlockingConnection
from headrace.wire.tls import StoreTls, client_context

NAME = "store-0.headrace.internal"
AUTHORITY = Authority()


class World:
    """A cluster whose store has the certificate `leaf`, and whose deployment publishes the authorities of `bundle`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mode: TlsMode, told: str = NAME) -> None:
        self.leaf = AUTHORITY.issue(NAME)
        self.authority = AUTHORITY
        self.contexts = store_contexts(self.leaf, AUTHORITY.bundle, NAME)
        self.cluster = RealCluster(tls=ServerTls(mode, lambda: self.contexts.server), tls_name=told)
        self.publish(AUTHORITY.bundle)
        serve_functions(self.cluster, monkeypatch)

    def publish(self, bundle: TrustBundle) -> None:
        found = find_trust(self.cluster.metadata)
        self.cluster.metadata.write(write_trust(bundle, None if found is None else found.version))

    def use(self, leaf: LeafSecret, authority: Authority) -> None:
        """Let the store have another certificate, which is not checked."""
        self.contexts = store_contexts(leaf, authority.bundle, NAME)

    def close(self) -> None:
        self.cluster.close()
        wiring.forget_services()


@pytest.fixture
def make_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(mode: TlsMode = TlsMode.REQUIRED, told: str = NAME) -> World:
        worlds.append(World(monkeypatch, mode, told))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def plaintext(world: World) -> int:
    assert world.cluster.store is not None
    return world.cluster.store.metrics.plaintext_connections


def untrusted(world: World) -> BlockingConnection:
    """A connection that the store's certificate does not allow."""
    assert world.cluster.listener is not None
    context = client_context(world.authority.bundle.pem)
    return BlockingConnection("127.0.0.1", world.cluster._port, tls=StoreTls(context, NAME))


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.REQUIRED])
def test_clients_and_functions_use_tls_without_a_setting(make_world: Callable[..., World], mode: TlsMode):
    world = make_world(mode)
    with client_of(world.cluster) as headrace:
        headrace.admin.create_scope("shop")
        headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2))
        with headrace.writer("shop", "orders") as writer:
            for number in range(100):
                writer.write(b"%d" % number, routing_key=str(number))
        with headrace.reader("shop", "orders", end=headrace.admin.stream_cut("shop", "orders")) as reader:
            assert sorted(int(event.event) for event in reader) == list(range(100))
        headrace.admin.seal_stream("shop", "orders")
    assert plaintext(world) == 0


def test_blocking_reads_use_tls(make_world: Callable[..., World]):
    world = make_world()
    with client_of(world.cluster) as headrace:
        headrace.admin.create_scope("shop")
        headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
        with headrace.writer("shop", "orders") as writer:
            writer.write(bytes(500_000))
        with SegmentReads(headrace.admin, "shop", "orders") as reads:
            assert sum(len(window) for window in reads.read(0, 0, 500_008)) == 500_008
    assert plaintext(world) == 0


def test_a_store_that_names_no_certificate_gets_plaintext(make_world: Callable[..., World]):
    world = make_world(TlsMode.PERMISSIVE, told="")
    with client_of(world.cluster) as headrace:
        headrace.admin.create_scope("shop")
        headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
        with headrace.writer("shop", "orders") as writer:
            writer.write(b"one")
    assert plaintext(world) > 0


def test_a2_a_wrong_name_is_refused_with_an_advice(make_world: Callable[..., World], caplog: pytest.LogCaptureFixture):
    world = make_world(told="store-1.headrace.internal")
    stores = TcpSegmentStores(
        locate_by_claims(world.cluster.metadata), 2, trust=StoreTrust(world.cluster.metadata), deadline_s=0.3
    )
    caplog.set_level(logging.WARNING)
    with pytest.raises(UnavailableError, match=r"is not trusted: its certificate is not for store-1\.headrace\.inte"):
        stores.segment_info(segment_name("s", "t", 0))
    assert caplog.text.count("event=store_not_trusted") == 1
    stores.close()


@pytest.mark.parametrize("wrong", ["name", "authority"])
def test_an_asynchronous_connection_is_refused_with_an_advice(make_world: Callable[..., World], wrong: str):
    world = make_world()
    context = client_context((Authority("Other") if wrong == "authority" else AUTHORITY).bundle.pem)
    tls = StoreTls(context, NAME if wrong == "authority" else "store-1.headrace.internal")

    async def connected() -> None:
        await open_connection("127.0.0.1", world.cluster._port, tls=tls)

    with pytest.raises(UnavailableError, match="is not trusted") as error:
        asyncio.run(connected())
    assert error.value.specific_code == "store_not_trusted"


def test_a_store_that_is_not_trusted_ends_a_read_with_the_reason(
    make_world: Callable[..., World], caplog: pytest.LogCaptureFixture
):
    world = make_world()
    with client_of(world.cluster) as headrace:
        headrace.admin.create_scope("shop")
        headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
        world.publish(Authority("Other").bundle)
    with (
        client_of(world.cluster) as headrace,
        SegmentReads(headrace.admin, "shop", "orders", give_up_after_s=0.2) as reads,
        pytest.raises(UnavailableError, match="was not issued by an authority"),
    ):
        list(reads.read(0, 0, 8))
    assert "event=store_not_trusted" in caplog.text


def test_a2_an_unknown_authority_is_refused(make_world: Callable[..., World]):
    world = make_world()
    world.authority = Authority("Other")
    with pytest.raises(UnavailableError, match=r"was not issued by an authority .*headrace trust") as error:
        untrusted(world)
    assert error.value.specific_code == "store_not_trusted"


def test_a2_an_expired_certificate_is_refused(make_world: Callable[..., World], tmp_path: Path):
    world = make_world()
    with pytest.raises(CorruptError, match="certificate has expired"):
        world.use(AUTHORITY.issue(NAME, days=-1), AUTHORITY)
    expired = AUTHORITY.issue(NAME, days=-1)
    (tmp_path / "expired.pem").write_text(expired.certificate + expired.key)
    world.contexts.server.load_cert_chain(tmp_path / "expired.pem")
    with pytest.raises(UnavailableError, match="its certificate has expired"):
        untrusted(world)


def test_a_peer_without_tls_is_an_error_that_names_the_setting(make_world: Callable[..., World]):
    world = make_world(TlsMode.OFF, told="")
    with pytest.raises(UnavailableError, match=r"does not complete the TLS handshake|closed the connection"):
        untrusted(world)


def test_replaced_authorities_are_fetched_again(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(trust, "REFETCH_AFTER_S", 0.0)
    monkeypatch.setattr(store_trust, "REREAD_AFTER_S", 0.0)
    caplog.set_level(logging.WARNING)
    world = make_world()
    with client_of(world.cluster) as headrace:
        headrace.admin.create_scope("shop")
        headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
        with headrace.writer("shop", "orders") as writer:
            writer.write(b"one")
            writer.flush()
            later = Authority("Later")
            world.publish(TrustBundle((*AUTHORITY.bundle.certificates, *later.bundle.certificates)))
            world.use(later.issue(NAME), later)
            world.cluster.drop_connections()
            writer.write(b"two")
        with headrace.reader("shop", "orders", end=headrace.admin.stream_cut("shop", "orders")) as reader:
            assert [event.event for event in reader] == [b"one", b"two"]
        with SegmentReads(headrace.admin, "shop", "orders") as reads:
            assert sum(len(window) for window in reads.read(0, 0, 22)) == 22
        headrace.admin.seal_stream("shop", "orders")
    assert "event=store_not_trusted" in caplog.text


def test_a_file_of_authorities_overrides_the_published_ones(make_world: Callable[..., World], tmp_path: Path):
    world = make_world()
    world.publish(Authority("Other").bundle)
    path = tmp_path / "ca.pem"
    path.write_text(AUTHORITY.bundle.pem)
    with connected_to(world.cluster, TlsOptions(ca_file=path)) as headrace:
        headrace.admin.create_scope("shop")
        context = headrace.admin.trust.context()
        with BlockingConnection("127.0.0.1", world.cluster._port, tls=StoreTls(context, NAME)) as connection:
            assert not connection.is_closed
    for wrong in ("nothing", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        path.write_text(wrong)
        refused = pytest.raises(InvalidRequestError, match="the CA file")
        with connected_to(world.cluster, TlsOptions(ca_file=path)) as headrace, refused:
            headrace.admin.trust.context()


def test_the_bundle_is_shipped_to_another_process(make_world: Callable[..., World]):
    world = make_world()
    with client_of(world.cluster) as driver, client_of(world.cluster) as executor:
        shipped = driver.admin.trust.shipped()
        assert shipped == AUTHORITY.bundle
        executor.admin.trust.offer(shipped)
        world.publish(Authority("Other").bundle)
        with BlockingConnection(
            "127.0.0.1", world.cluster._port, tls=StoreTls(executor.admin.trust.context(), NAME)
        ) as connection:
            assert not connection.is_closed


def test_a_deployment_without_authorities_says_so(make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch):
    world = make_world(TlsMode.OFF, told="")
    monkeypatch.setattr(wiring.segment_service().__class__, "trust", lambda _: trust.TrustView(()))
    with client_of(world.cluster) as headrace, pytest.raises(IllegalStateError, match="publishes no authority"):
        headrace.admin.trust.authorities()

"""TLS of a whole store process: its settings, its start, its claims, and certificates that change while it runs."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from certificates_at_hand import Authority
from store_process import PROCESS_WAIT_S as WAIT_S
from store_world import WireClient

from headrace import wire
from headrace.adapters.leaf_secrets import TlsSettings
from headrace.adapters.tcp import tls_contexts
from headrace.codec.certificates import LeafSecret
from headrace.metadata.cluster_records import find_claim
from headrace.metadata.trust import find_trust, write_trust
from headrace.model.errors import HeadraceError, IllegalStateError, UnavailableError
from headrace.model.tls_modes import TlsMode
from headrace.wire.tls import client_context
from segmentstore_fargate.config import StoreConfig
from segmentstore_fargate.wiring import SegmentStoreProcess

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("aws")]

NAME = "store-0.headrace.internal"


class Source:
    """A certificate that a test replaces, or an error."""

    def __init__(self, found: LeafSecret | HeadraceError) -> None:
        self.found = found

    def read(self) -> LeafSecret:
        if isinstance(self.found, HeadraceError):
            raise self.found
        return self.found


@pytest.fixture
def authority() -> Authority:
    return Authority()


def publish(process: SegmentStoreProcess, authority: Authority) -> None:
    store = process._metadata_store
    trust = find_trust(store)
    store.write(write_trust(authority.bundle, None if trust is None else trust.version))


@asynccontextmanager
async def running(process: SegmentStoreProcess) -> AsyncIterator[int]:
    """The port of a process."""
    ready = await asyncio.wait_for(process.start(), WAIT_S)
    try:
        yield int(ready.split("port=")[1].split()[0])
    finally:
        process.request_stop()
        await process.stop()


async def connected(port: int, context: ssl.SSLContext | None) -> WireClient:
    name = None if context is None else NAME
    client = WireClient(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name))
    assert await client.call(wire.Hello(17, 5)) == wire.OWN_HELLO
    return client


def with_tls(config: StoreConfig, mode: TlsMode, source: Source) -> SegmentStoreProcess:
    return SegmentStoreProcess(replace(config, tls=TlsSettings(mode, source, NAME)), {})


async def test_a_process_announces_the_name_of_its_certificate(config: StoreConfig, authority: Authority) -> None:
    process = with_tls(config, TlsMode.REQUIRED, Source(authority.issue(NAME)))
    publish(process, authority)
    async with running(process) as port:
        claim = find_claim(process._metadata_store, 0)
        assert claim is not None
        assert claim[0].tls_name == NAME
        (await connected(port, client_context(authority.bundle.pem))).close()
        assert process._tls.contexts is not None
        assert process._tls.announced_name == NAME


async def test_a_process_that_needs_tls_does_not_start_without(config: StoreConfig, authority: Authority) -> None:
    away = Source(UnavailableError("Secrets Manager does not answer"))
    process = with_tls(config, TlsMode.REQUIRED, away)
    with pytest.raises(IllegalStateError, match="has published no authority"):
        await process.start()
    publish(process, authority)
    with pytest.raises(UnavailableError, match="does not answer"):
        await process.start()


async def test_a_permissive_process_starts_and_announces_nothing(
    config: StoreConfig, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    process = with_tls(config, TlsMode.PERMISSIVE, Source(UnavailableError("Secrets Manager does not answer")))
    publish(process, authority)
    async with running(process) as port:
        claim = find_claim(process._metadata_store, 0)
        assert claim is not None
        assert claim[0].tls_name == ""
        (await connected(port, None)).close()
    assert "event=certificate_not_loaded expires_s=0" in caplog.text


async def test_reloads_keep_connections_and_failures_the_certificate(
    config: StoreConfig, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls_contexts, "RELOAD_EVERY_S", 0.005)
    monkeypatch.setattr(tls_contexts, "RETRY_S", 0.005)
    caplog.set_level(logging.INFO)
    later = Authority("Later")
    first_leaf, later_leaf = authority.issue(NAME), later.issue(NAME)
    source, keys = Source(first_leaf), [first_leaf.key, later_leaf.key]
    process = with_tls(config, TlsMode.REQUIRED, source)
    publish(process, authority)
    upkeep = process._tls
    async with running(process) as port:
        first = await connected(port, client_context(authority.bundle.pem))
        source.found = IllegalStateError("gone")
        await until(lambda: upkeep.reload_failures >= 2)
        (await connected(port, client_context(authority.bundle.pem))).close()
        source.found = later_leaf  # its authority is not published yet
        failed = upkeep.reload_failures
        await until(lambda: upkeep.reload_failures > failed)
        (await connected(port, client_context(authority.bundle.pem))).close()
        publish(process, later)
        before = upkeep.contexts
        await until(lambda: upkeep.contexts is not before)
        (await connected(port, client_context(later.bundle.pem))).close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await connected(port, client_context(authority.bundle.pem))
        assert isinstance(await first.call(wire.GetStreamSegmentInfo(3, "s/t/0.#epoch.0")), wire.NoSuchSegment)
        first.close()
    assert "event=certificate_not_loaded" in caplog.text
    assert all(line not in caplog.text for key in keys for line in key.splitlines()[1:-1])


async def test_a_certificate_with_less_than_a_day_is_loaded_again_soon(
    config: StoreConfig, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_contexts, "RETRY_S", 0.005)
    source = Source(authority.issue(NAME, days=0.9))
    process = with_tls(config, TlsMode.REQUIRED, source)
    publish(process, authority)
    async with running(process):
        reloads = process._tls._reloads
        assert reloads is not None
        assert reloads.ends_soon
        source.found = authority.issue(NAME)
        await until(lambda: not reloads.ends_soon)
        settled = process._tls.contexts
        await asyncio.sleep(0.1)
        assert process._tls.contexts is settled, "only each hour"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)

"""Links between replicas over TLS: both ends show a certificate of a store, and nothing else changes."""

from __future__ import annotations

import logging
import os
import ssl

import pytest
from certificates_at_hand import Authority
from recorded_links import PEER, entry, open_message
from replica_sockets import Ends, replica_ends

from headrace.adapters.tcp.arrivals import ServerTls
from headrace.adapters.tcp.replica_links import LinkTls
from headrace.adapters.tcp.replica_protocol import LinkTimes
from headrace.adapters.tcp.tls_contexts import StoreContexts, store_contexts
from headrace.codec.replica_messages import Ack, AckItem, Entries, Entry, Read
from headrace.model.tls_modes import TlsMode, is_store_name
from headrace.wire.tls import client_context

pytestmark = pytest.mark.anyio

DOMAIN = "headrace.internal"
OWN, OTHER = f"store-0.{DOMAIN}", f"store-1.{DOMAIN}"
AUTHORITY = Authority()
TIMES = LinkTimes(dial_s=60, handshake_s=5, silence_s=60, stalled_s=60, forgotten_s=60)


def contexts(name: str, authority: Authority = AUTHORITY) -> StoreContexts:
    return store_contexts(authority.issue(name), authority.bundle, name)


def server(mode: TlsMode = TlsMode.REQUIRED, name: str = OTHER) -> ServerTls:
    return ServerTls(mode, lambda: contexts(name).link_server, lambda names: any(is_store_name(n, name) for n in names))


def client(mode: TlsMode = TlsMode.REQUIRED, name: str = OWN, authority: Authority = AUTHORITY) -> LinkTls:
    return LinkTls(mode, lambda: contexts(name, authority).link_client)


async def refused(ends: Ends) -> None:
    ends.links.send(PEER, open_message())
    await ends.events.until(lambda: PEER in ends.events.lost)
    assert ends.host.messages == []
    assert not ends.links.is_up(PEER)


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.REQUIRED])
async def test_messages_of_both_directions_arrive(mode: TlsMode):
    async with replica_ends(TIMES, server_tls=server(mode), tls=client(mode), tls_name=OTHER) as ends:
        await ends.connect()
        ends.links.send(PEER, Read(1, 3, 12, 0, 9, 1000))
        await ends.host.until(lambda: len(ends.host.messages) == 2)
        header, payload = entry(1, b"read")
        answers = [Ack((AckItem(3, 1, 7, 9),)), Entries(1, 3, False, (Entry(header, payload),))]
        for answer in answers:
            ends.host.links[0].send(answer)
        await ends.events.until(lambda: len(ends.events.answers) == 2)
        assert ends.events.answers == [(PEER, answer) for answer in answers]


async def test_large_entries_arrive_whole_and_are_detached():
    """More than the sockets take at once: what waits is copied in the middle of a record, and goes on there."""
    async with replica_ends(TIMES, server_tls=server(), tls=client(), tls_name=OTHER) as ends:
        await ends.connect()
        ends.proxy.cut("up")
        sent = [entry(number, os.urandom(300_001 + number)) for number in range(40)]
        for header, payload in sent:
            ends.links.send_entry(PEER, header, [payload])
        ends.links.detach()
        ends.proxy.heal()
        await ends.host.until(lambda: len(ends.host.messages) == 41)
        assert [(each.header, bytes(each.payload)) for each in ends.host.messages[1:]] == [
            (header, bytes(payload)) for header, payload in sent
        ]


async def test_a_store_without_tls_is_served_while_permissive():
    async with replica_ends(TIMES, server_tls=server(TlsMode.PERMISSIVE)) as ends:
        await ends.connect()
    async with replica_ends(TIMES, tls=client(TlsMode.PERMISSIVE)) as ends:
        await ends.connect()


async def test_plaintext_is_refused_at_both_ends_when_required(caplog: pytest.LogCaptureFixture):
    async with replica_ends(TIMES, server_tls=server()) as ends:
        await refused(ends)
    assert "reason='plaintext'" in caplog.text
    async with replica_ends(TIMES, tls=client()) as ends:
        await refused(ends)
    assert "announces no certificate" in caplog.text


@pytest.mark.parametrize(
    ("tls", "told"),
    [
        pytest.param(client(authority=Authority("Other")), OTHER, id="unknown authority"),
        pytest.param(client(name=f"controller.{DOMAIN}"), OTHER, id="not a store"),
        pytest.param(client(name="store-0.example.com"), OTHER, id="of another deployment"),
        pytest.param(LinkTls(TlsMode.REQUIRED, lambda: client_context(AUTHORITY.bundle.pem)), OTHER, id="none"),
        pytest.param(client(), f"store-2.{DOMAIN}", id="another store answers"),
    ],
)
async def test_a_wrong_certificate_ends_the_link(tls: LinkTls, told: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    async with replica_ends(TIMES, server_tls=server(), tls=tls, tls_name=told) as ends:
        await refused(ends)
    assert "event=replica_unreachable" in caplog.text


async def test_the_certificate_of_any_store_may_open_links():
    async with replica_ends(TIMES, server_tls=server(), tls=client(name=f"store-17.{DOMAIN}"), tls_name=OTHER) as ends:
        await ends.connect()


async def test_the_secret_of_the_deployment_is_still_asked_for():
    async with replica_ends(
        TIMES, owner_secret=b"another secret of 32 characters..", server_tls=server(), tls=client(), tls_name=OTHER
    ) as ends:
        await refused(ends)


def test_contexts_ask_for_certificates_at_both_ends():
    own_contexts = contexts(OWN)
    assert own_contexts.link_server.verify_mode is ssl.CERT_REQUIRED
    assert own_contexts.link_client.verify_mode is ssl.CERT_REQUIRED
    assert own_contexts.link_client.check_hostname
    assert own_contexts.server.minimum_version is ssl.TLSVersion.TLSv1_2

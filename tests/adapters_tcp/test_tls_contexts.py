"""The contexts of a store: what they demand, and certificates that are refused before any client sees them."""

from __future__ import annotations

import os
import ssl
import time

import pytest
from certificates_at_hand import Authority
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.adapters.tcp.tls_contexts import store_contexts
from headrace.codec.certificates import LeafSecret, TrustBundle
from headrace.model.errors import CorruptError
from headrace.wire.tls import StoreTls, client_context

NAME = "store-0.headrace.internal"
AUTHORITY, OTHER = Authority(), Authority("Other")
LEAF = AUTHORITY.issue(NAME)


def test_contexts_are_strict() -> None:
    contexts = store_contexts(LEAF, AUTHORITY.bundle, NAME)
    for context in (contexts.server, contexts.link_server, contexts.link_client, client_context(AUTHORITY.bundle.pem)):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.verify_flags & ssl.VERIFY_X509_STRICT
        assert context.options & ssl.OP_NO_RENEGOTIATION
    assert client_context(AUTHORITY.bundle.pem).check_hostname
    assert contexts.server.verify_mode is ssl.VerifyMode.CERT_NONE  # clients show no certificate
    assert contexts.link_server.verify_mode is contexts.link_client.verify_mode is ssl.VerifyMode.CERT_REQUIRED
    assert 13 < (contexts.expires_s - time.time()) / 86_400 < 15


@pytest.mark.parametrize(
    ("leaf", "bundle", "words"),
    [
        pytest.param(AUTHORITY.issue("store-1.headrace.internal"), AUTHORITY.bundle, "Hostname mismatch", id="name"),
        pytest.param(AUTHORITY.issue(NAME, days=-1), AUTHORITY.bundle, "has expired", id="expired"),
        pytest.param(LEAF, OTHER.bundle, "issuer|signature|self-signed", id="authority"),
        pytest.param(
            LeafSecret(LEAF.certificate, OTHER.issue(NAME).key), AUTHORITY.bundle, "with its key", id="another key"
        ),
        pytest.param(
            LeafSecret(LEAF.certificate, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
            AUTHORITY.bundle,
            "with its key",
            id="no key",
        ),
        pytest.param(AUTHORITY.issue(NAME, curve=ec.SECP256K1()), AUTHORITY.bundle, "accept: NO_", id="curve"),
        pytest.param(AUTHORITY.issue(NAME, is_client=False), AUTHORITY.bundle, "purpose", id="use"),
    ],
)
def test_a_certificate_that_clients_refuse_is_not_used(leaf: LeafSecret, bundle: TrustBundle, words: str) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with pytest.raises(CorruptError, match=words) as error:
        store_contexts(leaf, bundle, NAME)
    assert all(line not in repr(error.value) for line in leaf.key.splitlines()[1:-1])
    assert before in (0, len(os.listdir("/proc/self/fd")))


def test_the_bridge_identifies_no_client() -> None:
    bridge = "controller.headrace.internal"
    assert store_contexts(AUTHORITY.issue(bridge, is_client=False), AUTHORITY.bundle, bridge).expires_s > time.time()


@pytest.mark.parametrize("name", ["", ".x", "x..y", "a\0b.c", "a" * 64 + ".x", "\ud800.x", "*.x", "localhost"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(CorruptError, match="not a DNS name"):
        StoreTls(client_context(AUTHORITY.bundle.pem), name)


def test_authorities_that_are_none_are_refused() -> None:
    with pytest.raises(CorruptError, match="cannot be used"):
        client_context("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")

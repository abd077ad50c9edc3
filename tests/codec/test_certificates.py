"""The stored forms of certificates: secrets of processes, and trust bundles."""

from __future__ import annotations

import json
from typing import Any

import pytest
from certificates_at_hand import Authority
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.certificates import (
    AUTHORITIES_MAX,
    BUNDLE_TEXT_BYTES_MAX,
    CHAIN_MAX,
    LEAF_TEXT_BYTES_MAX,
    LeafSecret,
    TrustBundle,
    bundle_of_pem,
    leaf_secret_text,
    parse_leaf_secret,
    parse_trust_bundle,
    trust_bundle_text,
)
from headrace.model.errors import CorruptError, HeadraceError, InvalidRequestError

AUTHORITY = Authority()
LEAF = AUTHORITY.issue("store-0.headrace.internal")
CA = AUTHORITY.bundle.certificates[0]


def test_a_secret_is_read_as_it_was_written():
    text = leaf_secret_text(LEAF)
    assert json.loads(text) == {"certificate": LEAF.certificate, "key": LEAF.key}
    assert parse_leaf_secret(text) == LEAF
    chain = LeafSecret(LEAF.certificate + CA, LEAF.key)
    assert parse_leaf_secret(leaf_secret_text(chain)) == chain


def test_unknown_fields_of_a_secret_are_ignored():
    assert parse_leaf_secret(json.dumps({**json.loads(leaf_secret_text(LEAF)), "issued": 5})) == LEAF


def test_the_key_is_not_shown():
    body = LEAF.key.splitlines()[1]
    assert body not in repr(LEAF)
    swapped = json.dumps({"certificate": LEAF.key, "key": LEAF.key})
    with pytest.raises(CorruptError) as error:
        parse_leaf_secret(swapped)
    assert body not in repr(error.value)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        [],
        {"certificate": LEAF.certificate},
        {"certificate": LEAF.certificate, "key": 5},
        {"certificate": "", "key": LEAF.key},
        {"certificate": LEAF.certificate, "key": ""},
        {"certificate": LEAF.certificate, "key": LEAF.key + LEAF.key},
        {"certificate": LEAF.certificate, "key": LEAF.key.replace("PRIVATE", "EC PRIVATE")},
        {"certificate": LEAF.certificate, "key": LEAF.key.replace("PRIVATE", "ENCRYPTED PRIVATE")},
        {"certificate": LEAF.certificate + "x", "key": LEAF.key},
        {"certificate": LEAF.certificate * (CHAIN_MAX + 1), "key": LEAF.key},
        {"certificate": LEAF.certificate[:-30], "key": LEAF.key},
        {"certificate": LEAF.certificate, "key": LEAF.key + " " * LEAF_TEXT_BYTES_MAX},
    ],
)
def test_another_secret_is_refused(fields: Any):
    with pytest.raises(CorruptError):
        parse_leaf_secret(json.dumps(fields))


def test_a_secret_that_would_not_be_read_is_not_written():
    with pytest.raises(InvalidRequestError, match="`key`"):
        leaf_secret_text(LeafSecret(LEAF.certificate, "secret words"))


def test_a_bundle_is_read_as_it_was_written():
    bundle = TrustBundle((CA, Authority().bundle.certificates[0]))
    assert json.loads(trust_bundle_text(bundle)) == {"certificates": list(bundle.certificates)}
    assert parse_trust_bundle(trust_bundle_text(bundle)) == bundle
    assert bundle_of_pem(f"# of 2026\n{bundle.pem}") == bundle


@pytest.mark.parametrize("certificates", [None, [], [5], [CA] * (AUTHORITIES_MAX + 1), [CA + CA], [LEAF.key], ["x"]])
def test_another_bundle_is_refused(certificates: Any):
    with pytest.raises(CorruptError, match="trust bundle"):
        parse_trust_bundle(json.dumps({"certificates": certificates}))


@pytest.mark.parametrize(
    "text",
    ["", "hello", CA[:-20], CA * (AUTHORITIES_MAX + 1), "x" * (BUNDLE_TEXT_BYTES_MAX + 1)],
    ids=["empty", "no PEM", "cut", "too many", "too long"],
)
def test_another_pem_file_is_refused(text: str):
    with pytest.raises(InvalidRequestError):
        bundle_of_pem(text)


@given(st.text() | st.from_regex(r"[\[{\]}\",:a-z ]*"))
def test_any_text_is_refused_with_an_error_of_the_tree(text: str):
    for parse in (parse_leaf_secret, parse_trust_bundle, bundle_of_pem):
        with pytest.raises(HeadraceError):
            parse(text)

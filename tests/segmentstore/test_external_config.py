"""The settings of a store that clients outside its network reach."""

from __future__ import annotations

import pytest

from headrace.model.errors import InvalidRequestError
from headrace.model.external_access import ExternalOffer
from segmentstore_fargate.config import read_config

REQUIRED = {
    "HEADRACE_STORE_ID": "store-1",
    "HEADRACE_DATA_DIR": "/data",
    "HEADRACE_METADATA_TABLE": "table",
    "HEADRACE_CHUNK_BUCKET": "bucket",
    "HEADRACE_TLS": "required",
    "HEADRACE_TLS_SECRET": "certificate",
    "HEADRACE_TLS_NAME": "store-1.headrace.internal",
}
OUTSIDE = {"HEADRACE_EXTERNAL_NAME": "store-1.streams.example.com", "HEADRACE_EXTERNAL_PORTS": "12347-12348"}


def test_a_store_announces_nothing_unless_told():
    assert read_config(REQUIRED).external is None
    assert read_config(REQUIRED | {"HEADRACE_EXTERNAL_PORTS": "1"}).external is None


def test_a_store_offers_its_name_and_ports():
    offer = read_config(REQUIRED | OUTSIDE).external
    assert offer == ExternalOffer("store-1.streams.example.com", range(12347, 12349))
    config = read_config(REQUIRED | OUTSIDE | {"HEADRACE_EXTERNAL_PORTS": "443", "HEADRACE_EXTERNAL_HOST": "127.0.0.1"})
    assert config.external == ExternalOffer("store-1.streams.example.com", range(443, 444), "127.0.0.1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADRACE_EXTERNAL_NAME", "Store"),
        ("HEADRACE_EXTERNAL_NAME", "10.0.0.1:5"),
        ("HEADRACE_EXTERNAL_PORTS", ""),
        ("HEADRACE_EXTERNAL_PORTS", "x"),
        ("HEADRACE_EXTERNAL_PORTS", "5-"),
        ("HEADRACE_EXTERNAL_PORTS", "5-4"),
        ("HEADRACE_EXTERNAL_PORTS", "0-4"),
        ("HEADRACE_EXTERNAL_PORTS", "1-2-3"),
        ("HEADRACE_EXTERNAL_PORTS", "1-65536"),
        ("HEADRACE_EXTERNAL_PORTS", "1-51"),
        ("HEADRACE_EXTERNAL_PORTS", "1-99999999999999999999"),
        ("HEADRACE_EXTERNAL_HOST", "a b"),
        ("HEADRACE_EXTERNAL_HOST", "x" * 254),
    ],
)
def test_wrong_addresses_outside_are_refused(name: str, value: str):
    with pytest.raises(InvalidRequestError, match=name):
        read_config(REQUIRED | OUTSIDE | {name: value})


@pytest.mark.parametrize("mode", ["off", "permissive"])
def test_clients_outside_need_tls(mode: str):
    with pytest.raises(InvalidRequestError, match="HEADRACE_TLS=required"):
        read_config(REQUIRED | OUTSIDE | {"HEADRACE_TLS": mode})

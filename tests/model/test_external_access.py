"""Addresses outside of the stores' network, and the names of networks."""

from __future__ import annotations

import pytest

from headrace.model.errors import InvalidRequestError
from headrace.model.external_access import EXTERNAL_PORT_MAX, ExternalAddress, ExternalOffer, Network, parse_network

NAME = "store-0.example.com"


@pytest.mark.parametrize("port", [1, EXTERNAL_PORT_MAX])
def test_an_offer_has_an_address_at_each_port(port: int) -> None:
    assert ExternalOffer(NAME, range(1, 9)).address(port) == ExternalAddress(NAME, port)
    assert ExternalAddress(NAME, port).reached_at == NAME
    assert ExternalOffer(NAME, range(1, 9), "10.0.0.1").address(port).reached_at == "10.0.0.1"


@pytest.mark.parametrize("port", [-1, 0, EXTERNAL_PORT_MAX + 1])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(InvalidRequestError, match="is not a port from 1 to 65535"):
        ExternalAddress(NAME, port)


@pytest.mark.parametrize("name", ["", "Store.example.com", "x" * 1_000_000])
def test_another_text_than_a_dns_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a DNS name") as refused:
        ExternalAddress(name, 1)
    assert len(refused.value.message) < 400


def test_networks_have_names() -> None:
    assert [parse_network(name) for name in ("vpc", "external")] == [Network.VPC, Network.EXTERNAL]
    for name in ("", "VPC", "x" * 1_000_000):
        with pytest.raises(InvalidRequestError, match="expected vpc or external") as refused:
            parse_network(name)
        assert len(refused.value.message) < 200

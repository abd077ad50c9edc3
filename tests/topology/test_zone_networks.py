"""The zones of addresses."""

from __future__ import annotations

import pytest

from headrace.zones import UNKNOWN_ZONE, ZONE_NETWORKS_MAX, ZoneNetworks, is_zone_id

NETWORKS = ZoneNetworks.parse("use1-az1=10.0.0.0/25, use1-az2=10.0.0.128/25,use1-az1=fd00::/64,")


@pytest.mark.parametrize(
    ("address", "zone"),
    [
        ("10.0.0.127", "use1-az1"),
        ("10.0.0.128", "use1-az2"),
        ("fd00::1", "use1-az1"),
        ("10.0.1.0", UNKNOWN_ZONE),
        ("::1", UNKNOWN_ZONE),
        ("", UNKNOWN_ZONE),
        ("/run/socket", UNKNOWN_ZONE),
    ],
)
def test_an_address_is_in_the_zone_of_its_network(address: str, zone: str) -> None:
    assert NETWORKS.zone_of(address) == zone


def test_no_networks_know_no_zone() -> None:
    assert ZoneNetworks.parse("") == ZoneNetworks()
    assert ZoneNetworks().zone_of("10.0.0.1") == UNKNOWN_ZONE


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.0/24",
        "use1-az1=",
        "=10.0.0.0/24",
        "use1-az1=10.0.0.1/24",
        "use1-az1:10.0.0.0/24",
        "USE1-AZ1=10.0.0.0/24",
        "use1-az1=10.0.0.0/24,use1-az2=10.0.0.128/25",
        "use1-az1=10.0.0.0/24,use1-az2=10.0.1.0/24,use1-az3=10.0.0.128/25",
        ",".join(f"use1-az1=10.{number // 256}.{number % 256}.0/24" for number in range(ZONE_NETWORKS_MAX + 1)),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        ZoneNetworks.parse(text)


def test_ids_of_zones_are_short_and_in_lower_case() -> None:
    assert is_zone_id("use1-az1")
    assert is_zone_id("local")
    assert not any(map(is_zone_id, ("", "us east", "Use1", "a" * 64, "use1-az1\n")))

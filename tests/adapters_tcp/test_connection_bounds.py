"""The rules by which a segment store refuses connections."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from headrace.adapters.tcp.listener import Bound, ConnectionBounds

CLIENT, OTHER, FUNCTION = "10.0.9.1", "10.0.9.2", "10.0.0.7"


def _opened(bounds: ConnectionBounds, address: str, wanted: int) -> int:
    """How many of `wanted` connections are accepted."""
    for accepted in range(wanted):
        if bounds.exceeded_by(address) is not None:
            return accepted
        bounds.opened(address)
    return wanted


@pytest.mark.parametrize(("total", "share"), [(4096, 1024), (512, 128), (40, 10), (3, 1), (1, 1)])
def test_one_address_gets_a_quarter_by_default(total: int, share: int):
    bounds = ConnectionBounds(total)
    assert _opened(bounds, CLIENT, total) == share
    if share < total:
        assert bounds.exceeded_by(CLIENT) is Bound.ADDRESS
        assert bounds.exceeded_by(OTHER) is None


def test_closed_connections_can_be_opened_again():
    bounds = ConnectionBounds(10, 2)
    assert _opened(bounds, CLIENT, 5) == 2
    bounds.closed(CLIENT)
    assert _opened(bounds, CLIENT, 5) == 1
    assert bounds.total == 2


def test_the_total_is_bounded_for_many_addresses():
    bounds = ConnectionBounds(10, 2)
    assert sum(_opened(bounds, f"10.0.1.{number}", 2) for number in range(20)) == 10
    assert bounds.exceeded_by(OTHER) is Bound.TOTAL


def test_clients_leave_reserved_connections_to_functions():
    bounds = ConnectionBounds(1000, 1000, [ip_network("10.0.0.0/25")])
    assert _opened(bounds, CLIENT, 1000) == 1000 - 64
    assert bounds.exceeded_by(OTHER) is Bound.TOTAL
    assert _opened(bounds, FUNCTION, 1000) == 64


def test_a_peer_without_an_address_has_no_reserved_connection():
    bounds = ConnectionBounds(8, 8, [ip_network("10.0.0.0/25")])
    assert _opened(bounds, "", 8) == 7

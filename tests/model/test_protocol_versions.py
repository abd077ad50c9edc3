"""Which versions of the protocol two stores share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidRequestError
from headrace.model.protocol_versions import FIRST_PROTOCOL, REPLICA_PROTOCOL, VERSION_MAX, ProtocolVersions

RANGES = st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda pair: ProtocolVersions(min(pair), max(pair)))


@given(RANGES, RANGES)
def test_shared_versions_are_those_that_both_speak(one: ProtocolVersions, other: ProtocolVersions):
    common = set(range(one.low, one.high + 1)) & set(range(other.low, other.high + 1))
    shared = one.shared(other)
    assert shared == other.shared(one)
    assert common == (set() if shared is None else set(range(shared.low, shared.high + 1)))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2, 1), (1, VERSION_MAX + 1)])
def test_impossible_versions_are_refused(low: int, high: int):
    with pytest.raises(InvalidRequestError, match="the lowest one first"):
        ProtocolVersions(low, high)


def test_this_release_speaks_that_of_leases_without_versions():
    assert REPLICA_PROTOCOL.shared(FIRST_PROTOCOL) == FIRST_PROTOCOL

"""Hashing, against values computed from Pravega's algorithm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.backoff import bucket_of_stream
from headrace.model.routing import container_of_hash_key, murmur3_128, routing_key_position


@pytest.mark.parametrize(
    ("key", "containers"),
    [("scope/stream/0", (0, 3, 3, 3)), ("scope/stream/1", (0, 3, 5, 15)), ("_system/_requeststream/0", (0, 1, 4, 4))],
)
def test_containers(key: str, containers: tuple[int, ...]):
    assert tuple(container_of_hash_key(key, count) for count in (1, 4, 8, 16)) == containers


@given(key=st.text(), count=st.integers(1, 64))
def test_containers_are_in_range_and_consistent(key: str, count: int):
    container = container_of_hash_key(key, count)
    assert 0 <= container < count
    assert container_of_hash_key(key, count + 1) in (container, count), "more containers move keys only to the new one"


@pytest.mark.parametrize(
    ("key", "position"),
    [
        ("", 0.24117842791623523),
        ("a", 0.9433912753816884),
        ("customer-3", 0.7632716195260012),
        ("Straße", 0.04064436137904326),
        ("x" * 100, 0.8769755246338502),
    ],
)
def test_a_key_keeps_its_position(key: str, position: float):
    """Streams have events at these positions: a key that moved would lose its order."""
    assert routing_key_position(key) == position


@given(key=st.text())
def test_positions_are_in_the_key_space(key: str):
    assert 0.0 <= routing_key_position(key) < 1.0


def test_positions_spread():
    counts = [0] * 10
    for index in range(10_000):
        counts[int(routing_key_position(f"N{index}") * 10)] += 1
    assert min(counts) > 850
    assert max(counts) < 1150


def test_lone_surrogates_have_a_position():
    """Java hashes the code unit as it is."""
    first, _ = murmur3_128(b"\x00\xd8", 1_741_865_571)
    assert routing_key_position("\ud800") == (first >> 12) * 2.0**-52
    assert container_of_hash_key("\ud800", 1) == 0


def test_buckets_spread():
    buckets = {bucket_of_stream(f"s/t{index}", 8) for index in range(200)}
    assert buckets == set(range(8))

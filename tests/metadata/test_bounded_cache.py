"""The total weight of a cache stays within its bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.bounded_cache import BoundedCache


def test_least_recently_used_value_is_evicted_first():
    cache: BoundedCache[str, int] = BoundedCache(10, lambda value: value)
    cache.put("a", 4)
    cache.put("b", 4)
    assert cache.get("a") == 4
    cache.put("c", 4)
    assert [cache.get(key) for key in "abc"] == [4, None, 4]
    assert cache.weight == 8


def test_value_above_the_bound_is_not_kept():
    cache: BoundedCache[str, int] = BoundedCache(10, lambda value: value)
    cache.put("a", 11)
    assert cache.get("a") is None
    assert cache.weight == 0


def test_put_replaces_the_value_and_its_weight():
    cache: BoundedCache[str, int] = BoundedCache(10, lambda value: value)
    cache.put("a", 4)
    cache.put("b", 5)
    cache.put("a", 3)
    assert (cache.get("a"), cache.weight) == (3, 8)
    cache.put("c", 2)
    assert [cache.get(key) for key in "abc"] == [3, 5, 2]
    cache.forget("a")
    cache.forget("nothing")
    assert (cache.get("a"), cache.weight) == (None, 7)


@given(puts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=50))
def test_weight_is_the_sum_and_within_the_bound(puts: list[tuple[int, int]]):
    cache: BoundedCache[int, tuple[int, int]] = BoundedCache(12, lambda value: value[1])
    for key, weight in puts:
        cache.put(key, (key, weight))
        kept = [value for value in (cache.get(number) for number in range(6)) if value is not None]
        assert cache.weight == sum(weight for _, weight in kept) <= 12
        assert all(key == value[0] for key, value in ((value[0], value) for value in kept))

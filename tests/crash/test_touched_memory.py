"""A store touches the memory of its cache in another thread, before appends need it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.segmentstore.cache.block_pool import ARENA_BYTES

if TYPE_CHECKING:
    from conftest import StoreProcess

WAIT_S = 60.0

# The arenas are found among all mappings of the process by their advice for huge pages.
has_huge_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has no huge pages"
)


@has_huge_pages
def test_memory_of_the_cache_is_touched_before_it_is_needed(make_store: Callable[..., StoreProcess]) -> None:
    """No client has sent anything yet."""
    store = make_store()
    store.start()
    deadline_s = time.monotonic() + WAIT_S
    while store.huge_page_bytes() < ARENA_BYTES:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert store.stop() == 0

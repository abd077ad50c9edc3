"""The chunk listing: clipped, contiguous, paged, bounded, and cheap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from chunk_history import History
from hypothesis import given

from headrace.api.plans import Chunks
from headrace.controller.services import paging
from headrace.controller.services.history import OFFSET_MAX
from headrace.model.chunks import ChunkRun, RunLink, chunk_sort, link_body
from headrace.model.errors import CorruptError, InvalidRequestError, NotFoundError, TruncatedError, UnavailableError
from headrace.model.limits import PAGE_ITEMS_MAX
from headrace.ports.segment_stores import SegmentInfo

SOURCE = "s/t/7.#epoch.0#transaction." + "0" * 31 + "1"


def bounds(page: Chunks) -> list[tuple[int, int]]:
    return [(chunk.offset, chunk.offset + chunk.length) for chunk in page.chunks]


@pytest.fixture
def three_runs(history: History) -> History:
    """[0, 10), [10, 30), [30, 60), each byte telling its offset."""
    data = bytes(range(60))
    for start, stop in [(0, 10), (10, 30), (30, 60)]:
        history.add(start, data[start:stop])
    return history


def test_a_segment_without_runs_has_no_chunks(history: History):
    assert history.chunks() == Chunks((), 0, None)
    assert history.chunks(5, 10) == Chunks((), 5, None)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, None, [(0, 10), (10, 30), (30, 60)]),
        (0, 60, [(0, 10), (10, 30), (30, 60)]),
        (0, 1, [(0, 1)]),
        (5, 35, [(5, 10), (10, 30), (30, 35)]),
        (10, 30, [(10, 30)]),
        (11, 12, [(11, 12)]),
        (59, 100, [(59, 60)]),
        (60, 100, []),
        (61, None, []),
        (20, 20, []),
        (OFFSET_MAX, None, []),
    ],
)
def test_ranges_are_clipped(three_runs: History, start: int, stop: int | None, expected: list[tuple[int, int]]):
    page = three_runs.chunks(start, stop)
    assert bounds(page) == expected
    assert page.stored_until == (expected[-1][1] if expected else start)
    assert page.next_offset is None
    assert three_runs.fetch(page) == bytes(range(start, page.stored_until) if expected else b"")


@pytest.fixture
def linked(history: History) -> History:
    """[0, 10) is the segment's own; what follows came by a merge, as [5, 25) and [25, 55) of its source."""
    history.add(0, bytes(range(10)))
    history.put_record(chunk_sort(10), link_body(RunLink(10, 50, SOURCE, 5, 9)))
    history.add(5, bytes(range(10, 30)), segment=SOURCE)
    history.add(25, bytes(range(30, 60)), segment=SOURCE)
    return history


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, None, [(0, 10), (10, 30), (30, 60)]),
        (5, 35, [(5, 10), (10, 30), (30, 35)]),
        (10, 30, [(10, 30)]),
        (30, None, [(30, 60)]),
        (31, 32, [(31, 32)]),
        (59, 100, [(59, 60)]),
        (60, 100, []),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_links_are_followed(linked: History, start: int, stop: int | None, expected: list[tuple[int, int]], limit: int):
    found: list[tuple[int, int]] = []
    data = b""
    offset: int | None = start
    while offset is not None:
        page = linked.chunks(offset, stop, limit)
        assert len(page.chunks) <= limit
        found += bounds(page)
        data += linked.fetch(page)
        offset = page.next_offset
    assert found == expected
    assert data == bytes(range(start, expected[-1][1]) if expected else b"")


def test_a_link_whose_runs_have_just_moved_is_asked_for_again(linked: History):
    linked.forget(5, segment=SOURCE)
    with pytest.raises(UnavailableError, match="being rewritten"):
        linked.chunks(10)


def test_pages_continue_where_the_last_one_ended(three_runs: History):
    first = three_runs.chunks(5, 40, limit=2)
    assert (bounds(first), first.stored_until, first.next_offset) == ([(5, 10), (10, 30)], 30, 30)
    assert first.next_offset is not None
    second = three_runs.chunks(first.next_offset, 40, limit=2)
    assert (bounds(second), second.stored_until, second.next_offset) == ([(30, 40)], 40, None)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    limit=st.integers(1, 5),
    ends=st.tuples(st.integers(0, 110), st.integers(0, 110)),
    head=st.integers(0, 3),
)
def test_pages_together_are_the_bytes_of_the_range(
    new_history: Callable[[], Any], lengths: list[int], limit: int, ends: tuple[int, int], head: int
):
    history = new_history()
    data = bytes(range(sum(lengths)))
    offset = 0
    for index, length in enumerate(lengths):
        if index >= head:
            history.add(offset, data[offset : offset + length])
        offset += length
    first_stored = sum(lengths[:head])
    start, stop = min(ends), max(ends)
    if start < first_stored < min(len(data), stop):
        with pytest.raises(TruncatedError) as truncated:
            history.chunks(start, stop, limit)
        assert truncated.value.details["startOffset"] == first_stored
        return
    read, at = b"", start
    for _ in range(len(lengths) + 1):
        page = history.chunks(at, stop, limit)
        assert len(page.chunks) <= limit
        read += history.fetch(page)
        assert page.stored_until == start + len(read)
        if page.next_offset is None:
            break
        assert page.next_offset == page.stored_until > at
        at = page.next_offset
    else:
        pytest.fail("the pages do not end")
    expected = data[start:stop] if start >= first_stored else b""
    assert read == expected


def test_a_page_from_a_runs_start_costs_one_query(three_runs: History):
    page = three_runs.chunks(0, None, limit=2)
    assert three_runs.counting.calls == ["query"]
    assert page.next_offset is not None
    three_runs.chunks(page.next_offset, None, limit=2)
    assert three_runs.counting.calls == ["query"] * 2


def test_other_pages_cost_two_and_empty_ones_at_most_that(three_runs: History, history: History):
    three_runs.chunks(7, None)
    assert three_runs.counting.calls == ["query"] * 2
    three_runs.counting.calls.clear()
    three_runs.chunks(7, 7)
    assert three_runs.counting.calls == []


def test_a_segment_that_has_nothing_in_tier_2_costs_one_query(history: History):
    history.chunks()
    assert history.counting.calls == ["query"]


def test_truncated_bytes_are_said_to_be_gone(history: History):
    history.add(10, b"x" * 10)
    with pytest.raises(TruncatedError) as truncated:
        history.chunks(0)
    assert truncated.value.details["startOffset"] == 10
    assert bounds(history.chunks(10)) == [(10, 20)]
    assert bounds(history.chunks(0, 10)) == []


def test_bytes_before_the_segments_start_have_no_links(three_runs: History):
    """Tier 2 keeps a run as long as some of its bytes are left, and an object for a while longer."""
    three_runs.segment_stores.extend(three_runs.name, 60)
    three_runs.segment_stores.truncate_segment(three_runs.name, 25)
    for start in (0, 10, 24):
        with pytest.raises(TruncatedError) as truncated:
            three_runs.chunks(start)
        assert truncated.value.details["startOffset"] == 25
    assert bounds(three_runs.chunks(25)) == [(25, 30), (30, 60)]


def test_a_deleted_segment_has_no_links(three_runs: History):
    three_runs.segment_stores.delete_segment(three_runs.name)
    with pytest.raises(NotFoundError):
        three_runs.chunks()


def test_links_wait_for_a_store_that_knows_the_start(three_runs: History, monkeypatch: pytest.MonkeyPatch):
    def away(names: list[str]) -> list[SegmentInfo]:
        raise UnavailableError(f"no store has {names}")

    monkeypatch.setattr(three_runs.segment_stores, "segment_infos", away)
    with pytest.raises(UnavailableError):
        three_runs.chunks()


def test_overlapping_runs_are_read_once(three_runs: History):
    """What a query may see while small runs are replaced by a large one."""
    three_runs.forget(10)
    three_runs.add(9, bytes(range(9, 40)))
    page = three_runs.chunks()
    assert bounds(page) == [(0, 10), (10, 40), (40, 60)]
    assert three_runs.fetch(page) == bytes(range(60))


def test_a_gap_ends_the_page_and_its_continuation_must_wait(three_runs: History):
    three_runs.forget(10)
    page = three_runs.chunks()
    assert (bounds(page), page.stored_until, page.next_offset) == ([(0, 10)], 10, 10)
    with pytest.raises(UnavailableError, match="being rewritten"):
        three_runs.chunks(10)
    three_runs.add(10, bytes(range(10, 30)))
    assert bounds(three_runs.chunks(10)) == [(10, 30), (30, 60)]


@pytest.mark.parametrize(
    ("sort", "body"),
    [
        (f"run/{0:020d}", {}),
        (f"run/{0:020d}", {"length": 0, "object": "o", "position": 0}),
        (f"run/{0:020d}", {"length": 1, "object": "o", "position": -1}),
        (f"run/{0:019d}x", {"length": 1, "object": "o", "position": 0}),
    ],
)
def test_records_that_are_no_runs_are_corrupt(history: History, sort: str, body: dict[str, Any]):
    history.put_record(sort, body)
    with pytest.raises(CorruptError):
        history.chunks()


@pytest.mark.parametrize(
    "arguments",
    [
        ("s", "t", 0, -1, 10),
        ("s", "t", 0, 10, 9),
        ("s", "t", 0, 0, OFFSET_MAX + 1),
        ("s", "t", 0, OFFSET_MAX + 1),
        ("s", "t", 0, 0, 10, 0),
        ("s", "t", 0, 0, 10, PAGE_ITEMS_MAX + 1),
        ("s", "t", -1),
        ("s", "t", 1 << 63),
        ("s/x", "t", 0),
        ("s", "", 0),
    ],
)
def test_bad_requests_cost_nothing(history: History, arguments: tuple[Any, ...]):
    with pytest.raises(InvalidRequestError):
        history.service.chunks(*arguments)
    assert history.counting.calls == []


def test_links_open_nothing_but_the_clipped_range(history: History):
    run: ChunkRun = history.add(0, b"0123456789", padding=100)
    page = history.chunks(3, 6)
    assert page.chunks[0].headers == {"Range": f"bytes={run.position + 3}-{run.position + 5}"}
    assert history.fetch(page) == b"345"


def test_a_page_of_links_is_bounded_by_bytes(history: History, monkeypatch: pytest.MonkeyPatch):
    """Links of AWS hold a session token of a kilobyte or two."""
    monkeypatch.setattr(paging.PageRoom, "__init__", lambda room: setattr(room, "left_bytes", 200))
    for number in range(20):
        history.add(10 * number, b"%010d" % number)
    found, pages = b"", 0
    start: int | None = 0
    while start is not None:
        page = history.chunks(start, limit=20)
        assert sum(len(chunk.url) for chunk in page.chunks[:-1]) < 200
        found += history.fetch(page)
        start, pages = page.next_offset, pages + 1
    assert found == b"".join(b"%010d" % number for number in range(20))
    assert pages > 2

"""Plans of ranges: pieces between events, links that cover what is stored, endpoints, and what a plan costs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_world import StreamWorld, segment

from headrace import topology
from headrace.adapters.memory.chunk_storage import MemoryChunkLinks, MemoryChunkStorage
from headrace.adapters.worker_threads import WorkerThreads
from headrace.api.plans import PlannedPiece, RangePlan, RangeToPlan
from headrace.api.segments import SegmentEndpoint
from headrace.controller.services import reader_plans
from headrace.controller.services.reader_plans import RangePlanService
from headrace.metadata.cluster_records import claim_body, claim_key
from headrace.model.chunks import ChunkRun, chunk_body, chunk_partition, chunk_sort
from headrace.model.containers import ContainerClaim
from headrace.model.errors import HeadraceError, InvalidRequestError, NotFoundError, TruncatedError
from headrace.model.limits import LINKS_PER_PLAN_MAX, RANGES_PER_PLAN_MAX
from headrace.model.names import container_of_segment, segment_name
from headrace.model.stream_cut_ranges import split_pieces, split_targets
from headrace.ports.metadata_store import Create, Key
from headrace.ports.workers import InTurn

APPEND_BYTES = 10
LOCATE = "segment store locate_offsets"
INFOS = "segment store segment_infos"


def service_of(world: StreamWorld, threads: int = 0) -> RangePlanService:
    links = MemoryChunkLinks(MemoryChunkStorage(), 60, world.clock)
    workers = WorkerThreads(threads) if threads else InTurn()
    return RangePlanService(world.store, world.segment_stores, links, workers, topology.CONTAINER_COUNT)


def append(world: StreamWorld, identifier: int, count: int) -> None:
    for _ in range(count):
        world.append(identifier, APPEND_BYTES)


def store_runs(world: StreamWorld, identifier: int, ends: Sequence[int]) -> None:
    """Tier 2 has the segment up to the last of `ends`, in runs that end there."""
    partition = chunk_partition(segment_name("s", "t", identifier))
    start = 0
    for end in ends:
        run = ChunkRun(start, end - start, f"o-{identifier}-{start}", 3)
        world.bare_store.write(Create(Key(partition, chunk_sort(start)), chunk_body(run)))
        start = end


def claim_all(world: StreamWorld) -> None:
    for container in range(topology.CONTAINER_COUNT):
        claim = ContainerClaim(f"store-{container}", "10.0.0.1", 1_000 + container, "a")
        world.bare_store.write(Create(claim_key(container), claim_body(claim)))


def links_of(piece: PlannedPiece) -> list[tuple[int, int]]:
    return [(chunk.offset, chunk.offset + chunk.length) for chunk in piece.chunks]


@pytest.fixture
def orders(world: StreamWorld) -> StreamWorld:
    """Segments 0, with 100 bytes of which 65 are stored in three runs, and 1, with 20 bytes in the journal only."""
    world.create()
    append(world, 0, 10)
    append(world, 1, 2)
    store_runs(world, 0, (25, 40, 65))
    claim_all(world)
    return world


def test_pieces_have_links_and_an_endpoint(orders: StreamWorld) -> None:
    ranges = [RangeToPlan(0, 0, 100, 30), RangeToPlan(1, 10, 20)]
    first, second = service_of(orders).plan("s", "t", ranges).plans
    assert [(piece.start, piece.end) for piece in first.pieces] == [(0, 30), (30, 50), (50, 80), (80, 100)]
    assert [piece.stored_until for piece in first.pieces] == [30, 50, 65, 80]
    assert [links_of(piece) for piece in first.pieces] == [[(0, 25), (25, 30)], [(30, 40), (40, 50)], [(50, 65)], []]
    assert first.pieces[1].chunks[0].headers == {"Range": "bytes=8-17"}
    assert second.pieces == (PlannedPiece(10, 20, (), 10),)
    container = container_of_segment("s/t/1.#epoch.0", topology.CONTAINER_COUNT)
    assert second.endpoint == SegmentEndpoint("10.0.0.1", 1_000 + container, "a", container, 0)


def test_without_links_nothing_is_said_about_storage(orders: StreamWorld) -> None:
    orders.calls.counts.clear()
    plan = service_of(orders).plan("s", "t", [RangeToPlan(0, 0, 100, 50)], links=False).plans[0]
    assert plan.pieces == (PlannedPiece(0, 50), PlannedPiece(50, 100))
    assert plan.endpoint is not None
    assert "query" not in orders.calls.counts


def test_an_unclaimed_container_has_no_endpoint(world: StreamWorld) -> None:
    world.create()
    append(world, 0, 1)
    (plan,) = service_of(world).plan("s", "t", [RangeToPlan(0, 0, 10)]).plans
    assert plan == RangePlan(0, (PlannedPiece(0, 10, (), 0),), None)


def test_a_piece_is_longer_where_no_boundary_is_known(world: StreamWorld) -> None:
    world.create()
    world.append(0, 10)
    world.append(0, 75)
    world.append(0, 15)
    (plan,) = service_of(world).plan("s", "t", [RangeToPlan(0, 0, 100, 25)]).plans
    assert [(piece.start, piece.end) for piece in plan.pieces] == [(0, 85), (85, 100)]
    (beyond,) = service_of(world).plan("s", "t", [RangeToPlan(0, 85, 200, 50)]).plans
    assert [(piece.start, piece.end) for piece in beyond.pieces] == [(85, 200)]


@pytest.mark.parametrize(
    ("ranges", "error", "message"),
    [
        ([], InvalidRequestError, "1 to 4000 ranges, not 0"),
        ([RangeToPlan(0, 5, 5)], InvalidRequestError, "not a range to plan"),
        ([RangeToPlan(0, -1, 5)], InvalidRequestError, "not a range to plan"),
        ([RangeToPlan(0, 0, 5, 0)], InvalidRequestError, "not a range to plan"),
        ([RangeToPlan(0, 0, 5), RangeToPlan(1, 0, 5), RangeToPlan(0, 0, 5)], InvalidRequestError, "overlap"),
        ([RangeToPlan(0, 4, 9), RangeToPlan(0, 0, 5)], InvalidRequestError, "overlap between 4 and 5"),
        ([RangeToPlan(0, 0, 5), RangeToPlan(77, 0, 5)], NotFoundError, "never had segment 77"),
        ([RangeToPlan(segment(2, 1), 0, 5)], NotFoundError, "never had segment"),
        ([RangeToPlan(0, 0, 10_000, 2), RangeToPlan(1, 0, 10_000, 2)] + [
            RangeToPlan(0, start, start + 1) for start in range(10_000, 10_000 + RANGES_PER_PLAN_MAX - 2)
        ], InvalidRequestError, "larger pieces"),
        ([RangeToPlan(0, start, start + 1) for start in range(RANGES_PER_PLAN_MAX + 1)], InvalidRequestError, "4001"),
    ],
)  # fmt: skip
def test_ranges_that_are_refused(
    orders: StreamWorld, ranges: list[RangeToPlan], error: type[HeadraceError], message: str
) -> None:
    with pytest.raises(error, match=message):
        service_of(orders).plan("s", "t", ranges)


def test_ranges_of_one_segment_may_touch(orders: StreamWorld) -> None:
    found = service_of(orders).plan("s", "t", [RangeToPlan(0, 50, 100), RangeToPlan(0, 0, 50)]).plans
    assert [links_of(piece) for plan in found for piece in plan.pieces] == [[(50, 65)], [(0, 25), (25, 40), (40, 50)]]


def test_a_range_beyond_a_sealed_segment_is_refused(orders: StreamWorld) -> None:
    orders.scale([0], [0.0, 0.25, 0.5])
    with pytest.raises(InvalidRequestError, match="ends at 100, before 101"):
        service_of(orders).plan("s", "t", [RangeToPlan(0, 0, 101)])


def test_truncated_ranges_are_refused(orders: StreamWorld) -> None:
    s2, s3, s4 = segment(2, 1), segment(3, 1), segment(4, 2)
    orders.scale([0], [0.0, 0.25, 0.5])
    append(orders, s2, 3)
    orders.scale([s3, 1], [0.25, 1.0])
    append(orders, s4, 3)
    plans = service_of(orders)
    orders.truncate({s2: 10, s4: 0})
    for gone in (RangeToPlan(0, 0, 10), RangeToPlan(1, 10, 20), RangeToPlan(s2, 0, 30)):
        with pytest.raises(TruncatedError) as refused:
            plans.plan("s", "t", [RangeToPlan(s4, 0, 30), gone])
        assert refused.value.details["segmentId"] == gone.segment_id
    assert len(plans.plan("s", "t", [RangeToPlan(s2, 10, 30), RangeToPlan(s4, 0, 30)]).plans) == 2


def test_a_segment_of_a_deleted_stream_says_so(orders: StreamWorld) -> None:
    orders.seal()
    orders.delete()
    orders.create()
    with pytest.raises(InvalidRequestError) as refused:
        service_of(orders).plan("s", "t", [RangeToPlan(0, 0, 10)])
    assert refused.value.specific_code == "stream_recreated"


def test_links_end_where_the_answer_is_full(orders: StreamWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece has all its links or none, and says which."""
    monkeypatch.setattr(reader_plans, "LINKS_PER_PLAN_MAX", 4)
    (plan,) = service_of(orders).plan("s", "t", [RangeToPlan(0, 0, 100, 30)]).plans
    assert [(len(piece.chunks), piece.stored_until) for piece in plan.pieces] == [
        (2, 30),
        (2, 50),
        (0, None),
        (0, None),
    ]
    monkeypatch.setattr(reader_plans, "LINKS_PER_PLAN_MAX", LINKS_PER_PLAN_MAX)
    monkeypatch.setattr(reader_plans, "LINK_BYTES_PER_PLAN_MAX", 3 * reader_plans.LINK_OVERHEAD_BYTES)
    (plan,) = service_of(orders).plan("s", "t", [RangeToPlan(0, 0, 100, 30)]).plans
    assert [(len(piece.chunks), piece.stored_until) for piece in plan.pieces] == [
        (2, 30),
        (0, None),
        (0, None),
        (0, None),
    ]


def test_directories_are_not_read_for_links_without_room(orders: StreamWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_plans, "LINKS_PER_PLAN_MAX", 2)
    monkeypatch.setattr(reader_plans, "DIRECTORIES_AT_ONCE", 2)
    ranges = [RangeToPlan(0, start, start + 10) for start in range(0, 100, 10)]
    orders.calls.counts.clear()
    plans = service_of(orders).plan("s", "t", ranges).plans
    assert [plan.pieces[0].stored_until for plan in plans] == [10, 20] + [None] * 8
    assert orders.calls.counts["query"] == 3


def test_a_directory_that_is_rewritten_gives_no_links(orders: StreamWorld) -> None:
    partition = chunk_partition("s/t/1.#epoch.0")
    later = ChunkRun(15, 5, "o", 0)
    orders.bare_store.write(Create(Key(partition, chunk_sort(15)), chunk_body(later)))
    before = ChunkRun(0, 5, "o", 0)
    orders.bare_store.write(Create(Key(partition, chunk_sort(0)), chunk_body(before)))
    (plan,) = service_of(orders).plan("s", "t", [RangeToPlan(1, 10, 20)]).plans
    assert plan.pieces == (PlannedPiece(10, 20),)


def test_what_a_plan_costs(world: StreamWorld) -> None:
    """Two calls to the segment stores, for all split points and all starts. One batch read for all endpoints, a query
    for each range.
    """
    count = 200
    world.create(segments=count)
    for identifier in range(count):
        append(world, identifier, 10)
        store_runs(world, identifier, (40, 100))
    claim_all(world)
    plans = service_of(world, threads=4)
    plans.plan("s", "t", [RangeToPlan(0, 0, 10)])
    world.calls.counts.clear()
    found = plans.plan("s", "t", [RangeToPlan(number, 0, 100, 40) for number in range(count)]).plans
    assert sum(len(plan.pieces) for plan in found) == 3 * count
    assert all(piece.stored_until == piece.end for plan in found for piece in plan.pieces)
    assert dict(world.calls.counts) == {"read": 2, "query": count, LOCATE: 1, INFOS: 1}


@given(
    st.lists(st.integers(1, 30), max_size=12),
    st.lists(st.integers(1, 60), max_size=6),
    st.integers(1, 120),
    st.booleans(),
    st.data(),
)
def test_pieces_cover_a_range_once(
    appends: list[int], runs: list[int], piece_bytes: int, threaded: bool, data: st.DataObject
) -> None:
    world = StreamWorld()
    world.create(segments=1)
    boundaries = [0]
    for length in [1, *appends]:
        world.append(0, length)
        boundaries.append(boundaries[-1] + length)
    stored = [0]
    for length in runs:
        stored.append(min(stored[-1] + length, boundaries[-1]))
    store_runs(world, 0, sorted(set(stored) - {0}))
    first = data.draw(st.integers(0, len(boundaries) - 2))
    start, end = boundaries[first], boundaries[data.draw(st.integers(first + 1, len(boundaries) - 1))]
    (plan,) = (
        service_of(world, threads=2 if threaded else 0).plan("s", "t", [RangeToPlan(0, start, end, piece_bytes)]).plans
    )
    assert [plan.pieces[0].start, *(piece.end for piece in plan.pieces)] == [
        *(piece.start for piece in plan.pieces),
        end,
    ]
    assert plan.pieces[0].start == start
    for piece in plan.pieces:
        assert {piece.start, piece.end} <= set(boundaries)
        assert piece.stored_until == max(piece.start, min(stored[-1], piece.end))
        edges = [piece.start, *(chunk.offset + chunk.length for chunk in piece.chunks)]
        assert [chunk.offset for chunk in piece.chunks] == edges[:-1]
        assert edges[-1] == piece.stored_until


@given(st.integers(0, 1_000), st.integers(1, 100_000), st.integers(1, 5_000), st.integers(1, 300))
def test_pieces_are_about_as_long_as_wanted(start: int, length: int, bytes_max: int, append_bytes: int) -> None:
    end = start + length
    targets = split_targets(start, end, bytes_max)
    assert targets == sorted(targets)
    pieces = list(split_pieces(start, end, bytes_max, lambda target: -(-target // append_bytes) * append_bytes))
    assert pieces[0][0] == start
    assert pieces[-1][1] == end
    assert all(left[1] == right[0] for left, right in pairwise(pieces))
    wanted = max(bytes_max, -(-length // 1_000))
    assert all(last - first <= wanted + append_bytes for first, last in pieces)
    assert list(split_pieces(start, end, None, lambda _: 0)) == [(start, end)]


def test_too_many_pieces_are_refused_before_they_are_computed(orders: StreamWorld) -> None:
    """4,000 ranges of 1,000 pieces: a request of 300 kB must not take 600 MB."""
    ranges = [RangeToPlan(0, start, start + 1_000, 1) for start in range(0, RANGES_PER_PLAN_MAX * 1_000, 1_000)]
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError, match="larger pieces"):
            service_of(orders).plan("s", "t", ranges)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20_000_000

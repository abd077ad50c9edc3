"""Records of the chunk directory and counts of objects: golden values, and back; shares of containers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.chunks import (
    OFFSET_BEHIND_ALL,
    ChunkRun,
    LogPlace,
    ObjectCount,
    RunLink,
    RunTimes,
    TableMark,
    chunk_body,
    chunk_partition,
    chunk_run,
    chunk_sort,
    is_link,
    link_body,
    object_body,
    object_count,
    object_partition,
    packed_epoch,
    packed_name,
    packed_prefix,
    run_link,
)
from headrace.model.containers import (
    QUARANTINE_RETRY_S,
    RETRY_FIRST_S,
    OpeningProgress,
    OpeningStep,
    containers_of_store,
)
from headrace.model.errors import CorruptError, UnavailableError

INT63 = st.integers(0, 2**63 - 1)


def test_golden_chunk_record():
    run = ChunkRun(1024, 512, "chunks/0/7", 99)
    assert chunk_partition("s/t/0.#epoch.0") == "chunks/s/t/0.#epoch.0"
    assert chunk_sort(1024) == "run/00000000000000001024"
    assert chunk_body(run) == {"length": 512, "object": "chunks/0/7", "position": 99}
    assert run.end == 1536


@pytest.mark.parametrize(
    ("times", "body"), [(RunTimes(5, 6), [5, 6]), (RunTimes(5, 9, 700, 30), [5, 9, 700, 30])], ids=["run", "block"]
)
def test_golden_chunk_record_with_times(times: RunTimes, body: list[int]):
    run = ChunkRun(1024, 512, "chunks/0/7", 99, times)
    assert chunk_body(run) == {"length": 512, "object": "chunks/0/7", "position": 99, "times": body}
    assert chunk_run(chunk_sort(1024), chunk_body(run)) == run


def test_golden_chunk_record_with_its_place_in_the_log():
    run = ChunkRun(1024, 512, "chunks/0/7", 99, logged=LogPlace(4, 1000))
    body = chunk_body(run)
    assert body == {"length": 512, "object": "chunks/0/7", "position": 99, "log": [4, 1000]}
    assert chunk_run(chunk_sort(1024), body).logged == run.moved(5, 0).logged == LogPlace(4, 1000)
    assert chunk_run(chunk_sort(1024), chunk_body(ChunkRun(1024, 512, "chunks/0/7", 99))).logged is None
    with pytest.raises(CorruptError):
        chunk_run(chunk_sort(1024), {**body, "log": [4]})


NO_BLOCK = st.just(0)
TIMES = st.builds(RunTimes, INT63, INT63, NO_BLOCK, NO_BLOCK) | st.builds(
    RunTimes, INT63, INT63, INT63, st.integers(1, 2**20)
)


RUNS = st.builds(
    ChunkRun,
    offset=INT63,
    length=INT63,
    object_name=st.text(min_size=1),
    position=INT63,
    times=st.none() | TIMES,
    table=st.none() | st.builds(TableMark, INT63, INT63),
    logged=st.none() | st.builds(LogPlace, INT63, INT63),
)


@given(RUNS)
def test_chunk_records_come_back(run: ChunkRun):
    found = chunk_run(chunk_sort(run.offset), chunk_body(run), 7)
    assert (found, found.logged, found.version) == (run, run.logged, 7)


@given(RUNS, INT63, INT63)
def test_moved_run_has_the_bytes_and_the_time_of_the_merge(run: ChunkRun, shift: int, ordering: int):
    """The table is that of the segment from which it was moved, and the version that of the record there."""
    moved = run.moved(shift, ordering)
    times = RunTimes(ordering, ordering)
    assert moved == ChunkRun(run.offset + shift, run.length, run.object_name, run.position, times)
    assert moved.logged == run.logged


@pytest.mark.parametrize(
    "numbers", [None, 5, "12", (1, 2), {1: 2, 3: 4}, [1], [1, 2, 3], [1, "2"], [1, 2.0], [True, 2]]
)
@pytest.mark.parametrize("field", ["times", "table", "log"])
def test_chunk_record_with_other_numbers_is_corrupt(field: str, numbers: object):
    body = chunk_body(ChunkRun(1024, 512, "chunks/0/7", 99))
    with pytest.raises(CorruptError, match="numbers"):
        chunk_run(chunk_sort(1024), {**body, field: numbers})


def test_golden_link_record():
    link = RunLink(1024, 512, "s/t/1.#epoch.0", 7, 5)
    body = {"length": 512, "segment": "s/t/1.#epoch.0", "position": 7, "times": [5, 5]}
    assert link_body(link) == body
    assert is_link(body)
    assert not is_link(chunk_body(ChunkRun(1024, 512, "chunks/0/7", 99)))
    assert run_link(chunk_sort(1024), body) == link
    assert not link.is_forwarding
    assert link.end == 1536


def test_a_forwarding_link_sorts_behind_every_run():
    link = RunLink(OFFSET_BEHIND_ALL, 512, "s/t/1.#epoch.0", 7, 5)
    assert chunk_sort(2**63 - 1) < chunk_sort(link.offset)
    assert run_link(chunk_sort(link.offset), link_body(link)).is_forwarding


@pytest.mark.parametrize("lacking", ["length", "segment", "position", "times"])
def test_a_link_that_lacks_a_field_is_corrupt(lacking: str):
    body = link_body(RunLink(0, 1, "s/t/1.#epoch.0", 0, 5))
    del body[lacking]
    with pytest.raises(CorruptError):
        run_link(chunk_sort(0), body)


@given(left=INT63, right=INT63)
def test_chunk_keys_sort_as_offsets(left: int, right: int):
    assert (chunk_sort(left) < chunk_sort(right)) == (left < right)


def test_golden_object_count():
    assert object_partition(3) == "objects/container-0003"
    assert packed_name(3, 7, 12) == "container-0003/packed/0000000007-0000000012"
    assert packed_name(3, 7, 12).startswith(packed_prefix(3))
    used, empty = ObjectCount(2, 30, 100), ObjectCount(0, 0, 100, 5)
    assert object_body(used) == {"runs": 2, "bytes": 30, "length": 100}
    assert object_body(empty) == {"runs": 0, "bytes": 0, "length": 100, "emptiedAtMs": 5}
    assert [object_count(object_body(count)) for count in (used, empty)] == [used, empty]


@pytest.mark.parametrize("field", ["runs", "bytes", "length", "emptiedAtMs"])
@pytest.mark.parametrize("value", [None, -1, "1", 1.0, True])
def test_a_count_with_another_field_is_corrupt(field: str, value: object):
    body = {**object_body(ObjectCount(0, 0, 100, 5)), field: value}
    with pytest.raises(CorruptError, match=field):
        object_count(body)
    del body[field]
    if field == "emptiedAtMs":
        assert object_count(body) == ObjectCount(0, 0, 100)
    else:
        with pytest.raises(CorruptError, match=field):
            object_count(body)


def test_an_object_is_dated_as_long_as_nothing_of_it_is_used():
    used = ObjectCount(2, 30, 100)
    empty = used.changed(-2, -30, 5)
    assert empty == ObjectCount(0, 0, 100, 5)
    assert empty.changed(1, 10, 6) == ObjectCount(1, 10, 100)


def test_only_names_of_counted_objects_have_an_epoch():
    assert packed_epoch(3, packed_name(3, 7, 12)) == 7
    prefix, digits = packed_prefix(3), "0000000007-0000000012"
    others = ["-00000000007-000000012", "00000000070000000012-", "000000000x-0000000012", "000000000\u0667-0000000012"]
    for other in (f"container-0003/{digits}", packed_name(4, 7, 12), f"{prefix}{digits}0", "x" * 21):
        assert packed_epoch(3, other) is None
    for other in (*others, "0000000007-000000001x", "0000000007-x000000012", "0000000007_0000000012"):
        assert packed_epoch(3, prefix + other) is None


@pytest.mark.parametrize("store_count", [1, 2, 3, 5, 8, 13])
def test_stores_share_all_containers(store_count: int):
    shares = [containers_of_store(index, store_count, 8) for index in range(store_count)]
    assert sorted(container for share in shares for container in share) == list(range(8))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_an_opening_goes_on_at_once_after_a_failure():
    failed = OpeningProgress().failed(UnavailableError("no answer"))
    assert failed == OpeningProgress(OpeningStep.CLAIM, {OpeningStep.CLAIM: 1}, RETRY_FIRST_S, False, "no answer")
    again = failed.failed(CorruptError("damaged"))
    assert again == OpeningProgress(OpeningStep.CLAIM, {OpeningStep.CLAIM: 2}, QUARANTINE_RETRY_S, True, "damaged")
    done = again.done()
    assert (done.step, done.retry_s, done.failures) == (OpeningStep.LEDGER, 0.0, {OpeningStep.CLAIM: 2})
    checkpoint = OpeningProgress(OpeningStep.CHECKPOINT).failed(OSError("x"))
    assert (checkpoint.step, checkpoint.error) == (OpeningStep.LEDGER, "OSError('x')")
    assert checkpoint.failed(OSError("x")).failed(OSError("x")).retry_s == 2 * RETRY_FIRST_S

"""A few seeds of the random programs, deliberate bugs that they find, and what a seed that failed prints."""

from __future__ import annotations

import asyncio
import logging
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from whole_trace import WholeTrace

from fuzz import program_command
from fuzz.checker import WrongStateError
from fuzz.lost_volume_programs import run_lost_volume_program
from fuzz.program_command import run_programs
from fuzz.program_trace import STEPS_KEPT, Trace
from fuzz.randomness import Random
from fuzz.read_programs import run_read_program
from fuzz.segment_programs import run_segment_program
from fuzz.table_programs import run_table_program
from fuzz.virtual_time import StuckError, run_in_virtual_time
from headrace.codec.container_snapshots import SegmentSnapshot
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.connections.read_processor import ReadProcessor
from headrace.segmentstore.containers import merges
from headrace.segmentstore.containers.idle_segments import IdleSegments
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tables.table import Table
from headrace.segmentstore.tiering.directory_upkeep import DirectoryUpkeep

SEED_OF_REFUSED_MERGE = 2
SEED_OF_EVICTED_TABLE = 1
SEEDS_OF_USED_NAME = (4, 14, 37)
SEED_OF_SHARED_ATTRIBUTES = 218
SEED_OF_LATER_NUMBERS = 3
SEED_OF_CHANGED_REPLY = 13
SEED_OF_FORGOTTEN_READ = 3


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """The command turns it off for its process."""
    yield
    logging.disable(logging.NOTSET)


def run_segments(seed: int, trace: Trace, **sizes: int) -> Counter[str]:
    return run_in_virtual_time(run_segment_program(seed, trace, **sizes), Random(seed))


def run_lost_volumes(seed: int, trace: Trace, **sizes: int) -> Counter[str]:
    return run_in_virtual_time(run_lost_volume_program(seed, trace, **sizes), Random(seed))


def run_reads(seed: int, trace: Trace, **sizes: int) -> Counter[str]:
    return run_in_virtual_time(run_read_program(seed, trace, **sizes), Random(seed))


def run_tables(seed: int, trace: Trace, **sizes: int) -> Counter[str]:
    return run_in_virtual_time(run_table_program(seed, trace, **sizes), Random(seed))


@pytest.mark.parametrize("seed", range(1, 9))
def test_segments_are_as_their_model(seed: int):
    assert run_segments(seed, Trace(), stores=2, steps=120)["append"] > 0


@pytest.mark.parametrize("seed", range(1, 11))
def test_lost_volumes_are_restored_as_their_model(seed: int):
    assert run_lost_volumes(seed, Trace())["restored"] > 0


@pytest.mark.parametrize("seed", range(1, 4))
def test_replies_to_reads_are_as_their_model(seed: int):
    assert run_reads(seed, Trace(), stores=2, steps=100)["bytes read"] > 0


@pytest.mark.parametrize("seed", range(1, 3))
def test_tables_are_as_their_model(seed: int):
    trace = Trace()
    run_tables(seed, trace, steps=20)
    assert trace.count > 0


@pytest.mark.parametrize(
    ("run", "sizes"),
    [
        (run_segments, {"stores": 2, "steps": 100}),
        (run_lost_volumes, {}),
        (run_reads, {"stores": 2, "steps": 60}),
        (run_tables, {"steps": 8}),
    ],
)
def test_a_seed_does_the_same_in_each_run(run: Any, sizes: dict[str, int]):
    first, second = WholeTrace(), WholeTrace()
    run(5, first, **sizes)
    run(5, second, **sizes)
    assert first.steps == second.steps
    assert len(first.steps) > STEPS_KEPT


def test_a_refused_merge_that_forgets_its_source_is_found(monkeypatch: pytest.MonkeyPatch):
    async def merged(container: Any, operation: Any, target: Any, sources: Any) -> None:
        for source in sources:
            container.dirty.pop(source.number, None)
        await container.apply(operation)
        container.dirty[target.number] = target

    monkeypatch.setattr(merges, "_merged", merged)
    with pytest.raises(WrongStateError, match="is not marked for a flush"):
        run_segments(SEED_OF_REFUSED_MERGE, Trace())


@pytest.mark.parametrize("seed", SEEDS_OF_USED_NAME)
def test_bytes_under_a_name_in_a_snapshot_are_found(seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(DirectoryUpkeep, "must_wait", lambda _upkeep, _segment: False)
    with pytest.raises(WrongStateError, match=r"tier 2 had .* bytes, restored nothing"):
        run_lost_volumes(seed, Trace())


def test_a_record_with_later_event_numbers_is_found(monkeypatch: pytest.MonkeyPatch):
    honest_state_of = IdleSegments.state_of

    def state_of(idle: IdleSegments, segment: Segment) -> SegmentSnapshot:
        return replace(honest_state_of(idle, segment), attributes=segment.accepted.attributes)

    monkeypatch.setattr(IdleSegments, "state_of", state_of)
    with pytest.raises(WrongStateError, match=r"event \d+; \d+ segments of the name begin so"):
        run_lost_volumes(SEED_OF_SHARED_ATTRIBUTES, Trace())


def test_restored_event_numbers_of_lost_bytes_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Segment, "_attributes_at", lambda segment, _end: dict(segment.accepted.attributes))
    with pytest.raises(WrongStateError, match=r"event \d+; \d+ segments of the name begin so"):
        run_lost_volumes(SEED_OF_LATER_NUMBERS, Trace())


def test_a_reply_that_changes_before_it_is_taken_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BlockPool, "pin", lambda _pool, _blocks: None)
    monkeypatch.setattr(BlockPool, "unpin", lambda _pool, _blocks: None)
    with pytest.raises(WrongStateError, match="expected one of"):
        run_reads(SEED_OF_CHANGED_REPLY, Trace(), stores=1)


def test_a_read_at_the_tail_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch):
    honest_release = ReadProcessor.release

    def release(processor: ReadProcessor, held: Any, *, again: bool) -> None:
        if again:
            processor._held.pop(held, None)
        else:
            honest_release(processor, held, again=again)

    monkeypatch.setattr(ReadProcessor, "release", release)
    with pytest.raises(WrongStateError, match="reads do not end"):
        run_reads(SEED_OF_FORGOTTEN_READ, Trace())


def test_a_change_checked_by_an_evicted_table_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Table, "check_current", lambda _table: None)
    with pytest.raises(WrongStateError):
        run_tables(SEED_OF_EVICTED_TABLE, Trace())


def test_a_failed_seed_prints_its_last_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], logging_as_before: None
):
    def run_seed(what: str, seed: int, trace: Trace) -> Counter[str]:
        for step in range(STEPS_KEPT + 1):
            trace.note(f"step {step}.")
        if seed == 2:
            raise WrongStateError("expected 1, found 2")
        return Counter(append=2)

    monkeypatch.setattr(program_command, "run_seed", run_seed)
    assert run_programs(Namespace(what="segments", seeds=range(1, 4))) == 1
    printed = capsys.readouterr().out
    assert "segments seed 2 failed: WrongStateError('expected 1, found 2')" in printed
    assert f"step {STEPS_KEPT}." in printed
    assert "step 0." not in printed
    assert "4  append" in printed
    assert printed.endswith("segments: 3 seeds, 1 failed: 2\n")
    assert run_programs(Namespace(what="segments", seeds=range(3, 5))) == 0


def test_a_wait_without_an_end_is_found():
    async def wait() -> None:
        await asyncio.sleep(1_000)
        await asyncio.Event().wait()

    with pytest.raises(StuckError):
        run_in_virtual_time(wait(), Random(1))


def test_a_call_of_a_thread_ends_without_its_caller():
    called: list[int] = []

    async def cancel_caller() -> None:
        caller = asyncio.ensure_future(asyncio.to_thread(called.append, 1))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(1)
        assert caller.cancelled()

    run_in_virtual_time(cancel_caller(), Random(1))
    assert called == [1]

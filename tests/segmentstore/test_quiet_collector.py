"""The collector of cycles keeps out of the way of appends, and still collects."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from segmentstore_fargate import garbage
from segmentstore_fargate.garbage import QuietCollector


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def automatic_collector_afterwards() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def _garbage(count: int) -> weakref.ref[Cycle]:
    cycles = [Cycle() for _ in range(count)]
    return weakref.ref(cycles[0])


def test_starting_and_stopping_takes_over_and_hands_back() -> None:
    async def take_over() -> None:
        collector = QuietCollector(lambda: 0)
        collector.start()
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
        collector.stop()

    asyncio.run(take_over())
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_it_collects_in_a_quiet_moment_only() -> None:
    gc.collect()
    gc.disable()
    work = [0]
    collector = QuietCollector(lambda: work[0])
    collector.look()
    lost = _garbage(garbage.WORTH_COLLECTING_OBJECTS)
    work[0] += 1
    collector.look()
    assert lost() is not None  # appends were done since the last look
    collector.look()
    assert lost() is None


def test_work_without_end_does_not_let_garbage_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "BUSY_OBJECTS_MAX", 50_000)
    gc.collect()
    gc.disable()
    numbers = iter(range(10))
    collector = QuietCollector(lambda: next(numbers))
    collector.look()
    lost = _garbage(garbage.BUSY_OBJECTS_MAX)
    collector.look()
    assert lost() is None


def test_it_looks_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LOOK_EVERY_S", 0.0)

    async def watch() -> None:
        looks = asyncio.Semaphore(0)

        def done() -> int:
            looks.release()
            return 0

        collector = QuietCollector(done)
        collector.start()
        for _ in range(3):
            await looks.acquire()
        collector.stop()

    asyncio.run(watch())

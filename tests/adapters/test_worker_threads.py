"""Workers: every item once, at the same time where there are threads, and none begun when time is short."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.adapters import worker_threads
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.worker_threads import WorkerThreads
from headrace.ports.clock import WorkLeftError, time_left_s, time_limit
from headrace.ports.workers import InTurn, Workers, each_piece

ALL = [InTurn(), WorkerThreads(1), WorkerThreads(4)]


@pytest.mark.parametrize("workers", ALL)
def test_every_item_is_worked_on_once(workers: Workers):
    done: list[int] = []
    workers.each(done.append, iter(range(100)))
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("workers", ALL)
def test_none_begins_when_time_is_short(workers: Workers):
    clock, items, done = ManualClock(), iter(range(10)), []
    with time_limit(clock, 30):

        def work(item: int) -> None:
            done.append(item)
            clock.advance(30_000)

        workers.each(work, items)
    assert len(done) <= 4
    assert len([*items]) == 10 - len(done)


def test_threads_run_in_parallel_within_the_callers_deadline():
    clock, together = ManualClock(), threading.Barrier(4, timeout=30)
    left_s: list[float] = []

    def work(_item: int) -> None:
        together.wait()
        left_s.append(time_left_s())

    with time_limit(clock, 30):
        WorkerThreads(4).each(work, iter(range(4)))
    assert left_s == [30] * 4


def test_an_error_is_raised_when_all_have_ended():
    def work(item: int) -> None:
        if item == 1:
            raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        WorkerThreads(2).each(work, iter(range(4)))


@pytest.mark.parametrize("workers", ALL)
def test_pieces_that_are_left_are_reported(workers: Workers):
    clock, done = ManualClock(), list[int]()

    def work(piece: int) -> None:
        done.append(piece)
        clock.advance(30_000)

    with time_limit(clock, 30), pytest.raises(WorkLeftError, match="pieces of a test are left"):
        each_piece(workers, work, range(10), "a test")
    assert 1 <= len(done) <= 4


@pytest.mark.parametrize("workers", ALL)
def test_all_pieces_are_worked_on(workers: Workers):
    done: list[int] = []
    each_piece(workers, done.append, range(10), "a test")
    each_piece(workers, done.append, [10], "a test")
    assert sorted(done) == list(range(11))


def test_no_more_threads_than_items(monkeypatch: pytest.MonkeyPatch):
    started: list[int] = []

    def pool(max_workers: int) -> ThreadPoolExecutor:
        started.append(max_workers)
        return ThreadPoolExecutor(max_workers)

    monkeypatch.setattr(worker_threads, "ThreadPoolExecutor", pool)
    done: list[int] = []
    WorkerThreads(32).each(done.append, iter([1, 2]))
    WorkerThreads(32).each(done.append, (number for number in (3, 4)))  # no one knows how many come
    assert (started, sorted(done)) == ([2, 32], [1, 2, 3, 4])

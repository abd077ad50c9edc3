"""The collector of cycles keeps out of the way of appends, and still collects."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from segmentstore_fargate import garbage
from segmentstore_fargate.garbage import QuietCollector

pytestmark = pytest.mark.anyio


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def automatic_collector_afterwards() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


@pytest.fixture
def take_over() -> None:
    gc.collect()
    gc.disable()


def never() -> bool:
    return False


async def test_starting_and_stopping_takes_over_and_hands_back() -> None:
    collector = QuietCollector(lambda: 0, never)
    collector.start()
    assert not gc.isenabled()
    assert gc.get_freeze_count() > 0
    collector.stop()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def _grown_old() -> Cycle:
    """A cycle that was in use while new objects were looked at, so that only a full look finds it later."""
    cycle = Cycle()
    gc.collect(0)
    gc.collect(1)
    return cycle


def _busy_collector() -> QuietCollector:
    numbers = iter(range(1_000_000))
    return QuietCollector(lambda: next(numbers), never)


@pytest.mark.usefixtures("take_over")
def test_garbage_of_a_busy_store_goes_at_the_next_look() -> None:
    collector = _busy_collector()
    lost = weakref.ref(Cycle())
    assert lost() is not None
    collector.look()
    assert lost() is None


@pytest.mark.usefixtures("take_over")
def test_what_was_in_use_during_one_look_goes_some_looks_later() -> None:
    collector = _busy_collector()
    request = Cycle()
    lost = weakref.ref(request)
    collector.look()
    del request
    for _ in range(garbage.YOUNG_LOOKS):
        collector.look()
    assert lost() is None


@pytest.mark.usefixtures("take_over")
def test_all_objects_are_looked_at_when_no_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "MIDDLE_LOOKS_IF_QUIET", 2)
    work = [0]
    collector = QuietCollector(lambda: work[0], never)
    collector.look()
    lost = weakref.ref(_grown_old())
    for _ in range(4 * garbage.YOUNG_LOOKS):
        work[0] += 1
        collector.look()
    assert lost() is not None
    collector.look()
    assert lost() is None


@pytest.mark.usefixtures("take_over")
def test_constant_load_does_not_postpone_full_collection_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "MIDDLE_LOOKS_MAX", 2)
    collector = _busy_collector()
    lost = weakref.ref(_grown_old())
    for _ in range(4 * garbage.YOUNG_LOOKS):
        collector.look()
    assert lost() is None


@pytest.mark.usefixtures("take_over")
@pytest.mark.parametrize("opens", [False, True])
def test_the_index_of_an_opened_container_is_not_visited(opens: bool) -> None:
    work = iter(range(1_000_000))
    collector = QuietCollector(lambda: next(work), lambda: opens)
    lost = weakref.ref(Cycle())
    frozen = gc.get_freeze_count()
    index = [Cycle() for _ in range(garbage.BULK_OBJECTS)]
    collector.look()
    assert (gc.get_freeze_count() - frozen >= len(index)) is opens
    assert (lost() is not None) is opens
    gc.unfreeze()


@pytest.mark.usefixtures("take_over")
def test_garbage_goes_while_a_container_cannot_be_opened() -> None:
    work = iter(range(1_000_000))
    collector = QuietCollector(lambda: next(work), lambda: True)
    lost = weakref.ref(Cycle())
    collector.look()
    assert lost() is None


@mock_aws
@pytest.mark.usefixtures("take_over")
def test_requests_to_aws_leave_nothing_behind() -> None:
    """What botocore makes for each of them is a web of cycles."""
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="bucket")
    collector = _busy_collector()

    def objects_after(requests: int) -> int:
        for number in range(requests):
            client.list_objects_v2(Bucket="bucket")
            if number % 10 == 0:
                collector.look()
        for _ in range(2 * garbage.YOUNG_LOOKS):
            collector.look()
        return len(gc.get_objects())

    before = objects_after(50)
    assert objects_after(200) < before + 200


async def test_it_looks_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LOOK_EVERY_S", 0.0)

    looks = asyncio.Semaphore(0)

    def done() -> int:
        looks.release()
        return 0

    collector = QuietCollector(done, never)
    collector.start()
    for _ in range(3):
        await looks.acquire()
    collector.stop()

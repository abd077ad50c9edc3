"""A stream under load splits and, idle, merges again: client, segment store, queue, functions, workflows, all but AWS.

Minutes pass because the clock of store and controller is moved, with the load of each 6 seconds written in between.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import boto3
import pytest
from moto import mock_aws
from real_cluster import RealCluster, client_of, serve_functions

from functions import wiring
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.scaling_report_senders import SqsScalingReports
from headrace.client import Headrace, ScalingPolicy
from headrace.local.event_sources import QueuePoller
from headrace.local.lambda_host import LambdaHost
from headrace.topology import SCALING_REPORTS_QUEUE

TICK_S = 6
TICKS_PER_MINUTE = 60 // TICK_S
TARGET_PER_S = 10
EVENTS_PER_TICK = 30 * TICK_S
KEYS = [f"key-{number}" for number in range(EVENTS_PER_TICK)]
PATIENCE_S = 30.0


class Day:
    """A cluster whose time passes as the test says, and whose reports are worked on as they come."""

    def __init__(self, cluster: RealCluster, clock: ManualClock, poller: QueuePoller) -> None:
        self._cluster, self._clock, self._poller = cluster, clock, poller
        self._worked = 0

    def pass_one_tick(self) -> None:
        self._clock.advance(TICK_S * 1000)
        self._cluster.thread.run(self._tick_rates())
        while self._worked < self._reported():
            self._worked += self._poller.poll_once(wait_s=1)

    def work_on_what_came_too_early(self) -> int:
        """Reports of streams that were busy, which come again after a second; how many."""
        return self._poller.poll_once(wait_s=2)

    def _reported(self) -> int:
        assert self._cluster.store is not None
        rates = [owned.container.rates for owned in self._cluster.store.owned.values()]
        return sum(each.hot_reports + each.cold_reports for each in rates)

    async def _tick_rates(self) -> None:
        assert self._cluster.store is not None
        self._cluster.store.tick_rates()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def day(clock: ManualClock, monkeypatch: pytest.MonkeyPatch, aws_environment: dict[str, str]) -> Iterator[Day]:
    with ExitStack() as parts:
        parts.enter_context(mock_aws())
        sqs = boto3.client("sqs", region_name="us-east-1")
        url = sqs.create_queue(QueueName=f"headrace-scaling-{uuid.uuid4()}")["QueueUrl"]
        sender = SqsScalingReports(url, sqs)
        sender.start()
        parts.callback(sender.stop, PATIENCE_S)
        parts.callback(wiring.forget_services)
        cluster = RealCluster(clock, sender)
        parts.callback(cluster.close)
        serve_functions(cluster, monkeypatch)
        monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
        monkeypatch.setattr(wiring, "clock", lambda: clock)
        monkeypatch.setattr(wiring, "sqs_client", lambda: sqs)
        yield Day(cluster, clock, QueuePoller(SCALING_REPORTS_QUEUE, url, sqs, LambdaHost(clock).invoke))


@pytest.fixture
def headrace(day: Day) -> Iterator[Headrace]:
    with client_of(day._cluster) as client:
        client.admin.create_scope("shop")
        yield client


def _await_segments(headrace: Headrace, day: Day, number: int) -> None:
    """The scales that were accepted end, and so do those whose report found the stream busy."""
    for _ in range(int(PATIENCE_S)):
        if len(headrace.admin.segments("shop", "orders")) == number:
            return
        day.work_on_what_came_too_early()
    raise AssertionError(f"{len(headrace.admin.segments('shop', 'orders'))} segments instead of {number}")


def test_a_stream_splits_under_load_and_merges_when_idle(day: Day, headrace: Headrace) -> None:
    policy = ScalingPolicy.by_event_rate(TARGET_PER_S, scale_factor=2, min_segments=1)
    headrace.admin.create_stream("shop", "orders", scaling=policy)
    written = 0
    sizes = [1]

    def pass_minutes(minutes: int, *, loaded: bool) -> None:
        nonlocal written
        for _ in range(minutes * TICKS_PER_MINUTE):
            if loaded:
                writer.write_batch([f"{key}:{written}".encode() for key in KEYS], KEYS)
                writer.flush(PATIENCE_S)
                written += 1
            day.pass_one_tick()

    with headrace.writer("shop", "orders") as writer:
        pass_minutes(10, loaded=True)
        assert len(headrace.admin.segments("shop", "orders")) == 1, "nothing is judged in the first ten minutes"
        for minutes, expected in ((4, 2), (12, 4)):
            pass_minutes(minutes, loaded=True)
            _await_segments(headrace, day, expected)
            sizes.append(expected)
        pass_minutes(13, loaded=True)
        assert len(headrace.admin.segments("shop", "orders")) == 4, "each has less than its target now"
        for expected in (2, 1):
            pass_minutes(26, loaded=False)
            _await_segments(headrace, day, expected)
            sizes.append(expected)
        pass_minutes(26, loaded=False)
        pass_minutes(1, loaded=True)
    (last,) = headrace.admin.segments("shop", "orders")
    assert (last.key_range.low, last.key_range.high) == (0.0, 1.0)
    assert sizes == [1, 2, 4, 2, 1]

    headrace.admin.seal_stream("shop", "orders")
    numbers_by_key: dict[str, list[int]] = defaultdict(list)
    with headrace.reader("shop", "orders") as reader:
        for read in reader:
            key, number = read.event.decode().split(":")
            numbers_by_key[key].append(int(number))
    assert set(numbers_by_key) == set(KEYS)
    assert all(numbers == list(range(written)) for numbers in numbers_by_key.values())
    epochs = headrace.admin.get_stream("shop", "orders").epoch
    assert epochs == 6, "two splits of two segments, and of the four two merges, then one"
    for before, after in pairwise(range(epochs + 1)):
        assert headrace.admin.segments("shop", "orders", epoch=before) != headrace.admin.segments(
            "shop", "orders", epoch=after
        )

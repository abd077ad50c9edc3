"""Kafka's client for Python, `confluent-kafka`, at the same work as ours. Its core is librdkafka, in C.

Acknowledgements are those of all in-sync copies, which is its default. Imports of the package are in the functions:
only a process that runs them needs it.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from benchmarks.client_process import KEYS, Report, timed
from benchmarks.latencies import Latencies
from benchmarks.pacing import paced_ns
from benchmarks.settings import AppendLoad, PacedLoad
from benchmarks.workloads import WrongResultError

BATCH_EVENTS: Final = 2_000
QUEUED_EVENTS_MAX: Final = 100_000 - BATCH_EVENTS
"""A batch fits into the producer's queue, which takes 100,000 events by default."""

PACED_LINGER_MS: Final = 0
"""By default a producer waits 5 ms for more events. For the latency of single events it must not."""

CREATE_S: Final = 60.0
WAIT_FOR_EVENTS_S: Final = 60.0
POLL_S: Final = 0.01
READ_EVENTS: Final = 2_000

_Failures = list[str]


def create_topic(address: str, topic: str, partitions: int, config: Mapping[str, str]) -> None:
    """Raises an exception of the package if it cannot be created."""
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient(
        {"bootstrap.servers": address, "log_level": 3}
    )  # while it waits: without a reference it ends at once
    client.create_topics([NewTopic(topic, partitions, 1, config=dict(config))])[topic].result(CREATE_S)


def write(address: str, topic: str, load: AppendLoad, *, single: bool) -> Report:
    """Write a burst, with one call an event or in batches; the time ends with the last acknowledgement.

    Raises:
        WrongResultError: not every event was acknowledged.
    """
    from confluent_kafka import Producer

    failures: _Failures = []
    producer = Producer({"bootstrap.servers": address, "delivery.report.only.error": True})
    event, note = os.urandom(load.event_bytes), _noted(failures)
    _open_connections(producer, topic, event)
    work = _one_by_one if single else _batches
    before = _end(address, topic)
    report = timed(lambda: work(producer, topic, event, load.events, note))
    _check(failures, _end(address, topic) - before, load.events)
    return report


def paced(address: str, topic: str, load: PacedLoad) -> Latencies:
    """Write event after event at the moments they are due; latencies count from then until the acknowledgement.

    Another thread takes the acknowledgements, as our client's does.

    Raises:
        WrongResultError: not every event was acknowledged.
    """
    from confluent_kafka import Producer

    total, taken_ns = int(load.rate_per_s * load.seconds), list[int]()
    producer = Producer({"bootstrap.servers": address, "linger.ms": PACED_LINGER_MS})
    event = os.urandom(load.event_bytes)
    _open_connections(producer, topic, event)
    ended = threading.Event()

    def take_acknowledgements() -> None:
        while not ended.is_set():
            producer.poll(POLL_S)

    def acknowledged(due_ns: int) -> Callable[[Any, Any], None]:
        def call(error: Any, _message: Any) -> None:
            if error is None:
                taken_ns.append(time.monotonic_ns() - due_ns)

        return call

    taker = threading.Thread(target=take_acknowledgements, name="acknowledgements")
    taker.start()
    gc.disable()
    try:
        for number, due_ns in enumerate(paced_ns(load.rate_per_s, total)):
            producer.produce(topic, event, KEYS[number % len(KEYS)], on_delivery=acknowledged(due_ns))
        producer.flush(WAIT_FOR_EVENTS_S)
    finally:
        gc.enable()
        ended.set()
        taker.join()
    if len(taken_ns) != total:
        raise WrongResultError(f"{len(taken_ns)} of {total} events were acknowledged")
    return Latencies.of_ns(taken_ns)


def read(address: str, topic: str, load: AppendLoad) -> Report:
    """Read a topic from its beginning.

    Raises:
        WrongResultError: an event is missing.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": topic, "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, CREATE_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])

    def work() -> None:
        count, deadline_s = 0, time.monotonic() + WAIT_FOR_EVENTS_S
        while count < load.events:
            messages = consumer.consume(READ_EVENTS, timeout=POLL_S)
            count += sum(1 for message in messages if message.error() is None and message.value())
            if time.monotonic() > deadline_s:
                raise WrongResultError(f"read {count} of {load.events} events")

    report = timed(work)
    consumer.close()
    return report


def _open_connections(producer: Any, topic: str, event: bytes) -> None:
    for key in KEYS:
        producer.produce(topic, event, key)
    producer.flush(WAIT_FOR_EVENTS_S)


def _one_by_one(producer: Any, topic: str, event: bytes, count: int, note: Callable[[Any, Any], None]) -> None:
    produce = producer.produce
    for number in range(count):
        key = KEYS[number % len(KEYS)]
        while True:
            try:
                produce(topic, event, key, on_delivery=note)
                break
            except BufferError:
                producer.poll(POLL_S)
    producer.flush(WAIT_FOR_EVENTS_S)


def _batches(producer: Any, topic: str, event: bytes, count: int, note: Callable[[Any, Any], None]) -> None:
    messages = [{"value": event, "key": KEYS[number % len(KEYS)]} for number in range(min(BATCH_EVENTS, count))]
    for first in range(0, count, BATCH_EVENTS):
        while len(producer) > QUEUED_EVENTS_MAX:
            producer.poll(POLL_S)
        some = messages[: count - first]
        if producer.produce_batch(topic, some, on_delivery=note) != len(some):
            raise WrongResultError("the producer did not take a whole batch")
    producer.flush(WAIT_FOR_EVENTS_S)


def _noted(failures: _Failures) -> Callable[[Any, Any], None]:
    def call(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    return call


def _end(address: str, topic: str) -> int:
    """The number of events in a topic."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": topic})
    partitions = consumer.list_topics(topic, CREATE_S).topics[topic].partitions
    found = [consumer.get_watermark_offsets(TopicPartition(topic, number), CREATE_S) for number in partitions]
    consumer.close()
    return sum(high for _low, high in found)


def _check(failures: _Failures, written: int, wanted: int) -> None:
    if failures or written != wanted:
        raise WrongResultError(f"the topic has {written} of {wanted} events; {failures[:1]}")

"""TLS in Spark: the driver ships the authorities, so that tasks do not ask for them."""

from __future__ import annotations

import pickle
from contextlib import closing

import pytest
from certificates_at_hand import Authority
from spark_store_double import SCOPE, STREAM, StoreDouble

from headrace.adapters.tcp.tls_contexts import store_contexts
from headrace.spark.options import ReadOptions, read_options
from headrace.spark.partitions import Partition
from headrace.spark.plans import open_plans
from headrace.spark.task_reads import read_partition

EVENTS = 40
NAME = "store-0.headrace.internal"
AUTHORITY = Authority()


@pytest.fixture
def encrypted(store: StoreDouble) -> StoreDouble:
    """A store that wants TLS and tokens, with all events in it and half of them in S3 too."""
    for number in range(EVENTS):
        store.stream.append(number % 2 / 2, b"event %2d" % number)
    store.stored = lambda segment: segment.boundary_at_or_after(len(segment.data) // 2)
    store.token_life_s = 600.0
    store.tls = store_contexts(AUTHORITY.issue(NAME), AUTHORITY.bundle, NAME).server
    store.tls_name, store.authorities = NAME, AUTHORITY.bundle.certificates
    return store


def _options(store: StoreDouble) -> ReadOptions:
    return read_options({"controller": store.url, "scope": SCOPE, "stream": STREAM, "patience_s": "5"})


def _planned(options: ReadOptions, *, links: bool = True) -> list[Partition]:
    with closing(open_plans(options, links=links)) as plans:
        return plans.batch_partitions()


def _read(options: ReadOptions, partitions: list[Partition]) -> int:
    """The events that tasks read, each from what Spark sends it."""
    sent = pickle.loads(pickle.dumps(partitions))
    return sum(batch.num_rows for part in sent for batch in read_partition(options, part))


def test_tasks_trust_whom_the_driver_trusts(encrypted: StoreDouble) -> None:
    options = _options(encrypted)
    partitions = _planned(options)
    assert {planned.trust for part in partitions for planned in part} == {AUTHORITY.bundle}
    assert "CERTIFICATE" not in repr(partitions)
    assert _read(options, partitions) == EVENTS
    assert encrypted.requests["trust"] == 1
    assert encrypted.requests["ReadSegment"] > 0


def test_tasks_of_plans_in_files_ask_for_the_authorities(encrypted: StoreDouble) -> None:
    encrypted.token_life_s = None
    options = _options(encrypted)
    partitions = _planned(options, links=False)
    assert {planned.trust for part in partitions for planned in part} == {None}
    assert _read(options, partitions) == EVENTS
    assert encrypted.requests["trust"] == 1


def test_history_needs_no_authorities(encrypted: StoreDouble) -> None:
    encrypted.stored = lambda segment: len(segment.data)
    options = _options(encrypted)
    assert _read(options, _planned(options)) == EVENTS
    assert encrypted.requests["trust"] == 0

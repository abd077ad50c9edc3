"""Credentials that expire while a batch is written: the driver's error says so, at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sink_double import SinkDouble
from sink_driver import BATCH, Driver, options, rows_of
from spark_store_double import SCOPE, STREAM, RefusedError, StoreDouble

from headrace.model.errors import IllegalStateError, UnauthorizedError
from headrace.spark.client_sink import open_sink
from headrace.spark.sink_access import SinkAccess
from headrace.spark.sink_commits import abort_batch, abort_unnamed_batch

EXPIRED = "the security token included in the request is expired"
TRANSACTION = f"{1:032x}"


def _begin(sink: SinkAccess) -> object:
    return sink.begin(STREAM, lease_ms=60_000, label="q/0/0/0")


def _commit(sink: SinkAccess) -> object:
    return sink.commit(STREAM, "spark:q", 0, {STREAM: [TRANSACTION]}, abort_labels="q")


def _abort(sink: SinkAccess) -> None:
    sink.abort_labelled(STREAM, "q/0/")


@pytest.mark.parametrize("request_of", [_begin, _commit, _abort])
def test_a_refused_request_is_not_repeated(store: StoreDouble, request_of: Callable[[SinkAccess], object]) -> None:
    sink = open_sink(options(controller=store.url, scope=SCOPE, stream=STREAM, patience_s="60"))
    store.gone = RefusedError(403, "unauthorized", EXPIRED)
    with pytest.raises(UnauthorizedError, match=EXPIRED):
        request_of(sink)
    assert store.requests.total() == 1


@pytest.fixture
def sink() -> SinkDouble:
    return SinkDouble()


def _expired(*_arguments: Any, **_named: Any) -> Any:
    raise UnauthorizedError(EXPIRED)


@pytest.mark.parametrize("request_of", ["begin", "commit", "committed_epoch", "transaction_state", "newest_completed"])
def test_the_driver_says_what_expired(sink: SinkDouble, monkeypatch: pytest.MonkeyPatch, request_of: str) -> None:
    """The abort that follows fails in the same way, and does not hide the first error."""
    driver = Driver(sink, options())
    monkeypatch.setattr(sink, request_of, _expired)
    sink.abort_error = UnauthorizedError("the abort is refused, too")
    if request_of == "committed_epoch":
        sink.epochs["t", BATCH.writer] = BATCH.epoch  # only a repeated batch asks
    with pytest.raises(UnauthorizedError, match=EXPIRED):
        driver.commit(*(driver.task(rows_of(b"a"), partition=number) for number in range(2)))
    abort_batch(sink, driver.options, BATCH)
    abort_unnamed_batch(sink, driver.options, BATCH.epoch)


def test_a_refused_abort_does_not_hide_why_a_commit_failed(sink: SinkDouble) -> None:
    driver = Driver(sink, options())
    report = driver.task(rows_of(b"a"))
    sink.expire()
    sink.abort_error = UnauthorizedError(EXPIRED)
    with pytest.raises(IllegalStateError, match=r"is not committed.*larger transaction_timeout_ms"):
        driver.commit(report)

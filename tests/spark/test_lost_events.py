"""The driver reports events of an accepted commit that a segment store lost with its volume."""

from __future__ import annotations

import pytest
from sink_double import SinkDouble
from sink_driver import BATCH, Driver, options, rows_of

from headrace.model.errors import CorruptError
from headrace.model.transactions import TransactionState
from headrace.spark.sink_commits import commit_batch


@pytest.fixture
def sink() -> SinkDouble:
    return SinkDouble()


def test_events_lost_after_a_repeated_request_are_reported(sink: SinkDouble) -> None:
    sink.loses_commit_answer = sink.loses_events = True
    sink.polls_until_visible = 1
    driver = Driver(sink, options())
    with pytest.raises(CorruptError, match="lost events of batch 3 in stream t"):
        driver.commit(driver.task(rows_of(b"a")))


def test_one_transaction_that_lost_events_is_reported(sink: SinkDouble) -> None:
    """It is neither the first nor the last of its stream: the volume was lost after the first were visible."""
    sink.polls_until_visible = 1
    driver = Driver(sink, options())
    reports = [driver.task(rows_of(b"%d" % number), partition=number) for number in range(5)]
    ((_, lost),) = reports[2].transactions

    def sleep(_seconds: float) -> None:
        sink.transactions[lost].state = TransactionState.ABORTED

    with pytest.raises(CorruptError, match="lost events of batch 3 in stream t") as raised:
        commit_batch(sink, driver.options, BATCH, reports, sleep)
    assert (raised.value.details["aborted"], raised.value.details["transactions"]) == (1, 5)


@pytest.mark.parametrize("lost", range(8))
def test_lost_events_of_large_batches_are_reported(sink: SinkDouble, lost: int) -> None:
    """The listing of completed transactions is limited; the others are read one by one."""
    sink.polls_until_visible, sink.completed_listed_max = 1, 3
    driver = Driver(sink, options())
    reports = [driver.task(rows_of(b"%d" % number), partition=number) for number in range(8)]
    ((_, transaction),) = reports[lost].transactions

    def sleep(_seconds: float) -> None:
        sink.transactions[transaction].state = TransactionState.ABORTED

    with pytest.raises(CorruptError, match="lost events of batch 3 in stream t") as raised:
        commit_batch(sink, driver.options, BATCH, reports, sleep)
    assert (raised.value.details["aborted"], raised.value.details["transactions"]) == (1, 8)


@pytest.mark.parametrize(("tasks", "listed_max", "reads"), [(1, 3, 2), (3, 3, 1), (5, 3, 3)])
def test_a_listing_answers_for_most_transactions(sink: SinkDouble, tasks: int, listed_max: int, reads: int) -> None:
    sink.completed_listed_max = listed_max
    driver = Driver(sink, options())
    driver.commit(*(driver.task(rows_of(b"%d" % number), partition=number) for number in range(tasks)))
    assert sink.reads == reads, "the last one is asked for until it is visible, then those that are not listed"


def test_a_repeated_batch_reports_what_an_earlier_run_lost(sink: SinkDouble) -> None:
    """The earlier run died while its commit was completed; only the labels of its transactions are known."""
    sink.polls_until_visible = 1_000_000
    first, again = (Driver(sink, options()) for _ in range(2))
    patient = options(read_after_write_consistency="false")
    reports = [first.task(rows_of(b"%d" % number), partition=number) for number in range(3)]
    commit_batch(sink, patient, BATCH, reports, lambda _seconds: None)
    report = again.task(rows_of(b"0"))
    lost, *kept = (transaction for report in reports for _, transaction in report.transactions)

    def sleep(_seconds: float) -> None:
        sink.transactions[lost].state = TransactionState.ABORTED
        for transaction in kept:
            sink.transactions[transaction].state = TransactionState.COMMITTED

    with pytest.raises(CorruptError, match="lost events of batch 3 in stream t") as raised:
        commit_batch(sink, again.options, BATCH, [report], sleep)
    assert (raised.value.details["aborted"], raised.value.details["transactions"]) == (1, 3)


def test_events_that_a_store_lost_are_reported(sink: SinkDouble) -> None:
    sink.loses_events = True
    driver = Driver(sink, options())
    with pytest.raises(CorruptError, match="lost events of batch 3 in stream t"):
        driver.commit(driver.task(rows_of(b"a")))

"""The sink without Spark: what tasks write, what the driver commits, and what is left after every kind of failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pyarrow as pa
import pytest
from sink_double import Row, SinkDouble
from sink_driver import BATCH, Driver, options, rows_of

from headrace.model.errors import (
    CorruptError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.model.stream_configuration import ScalingPolicy
from headrace.model.transactions import TransactionState
from headrace.spark.sink_commits import abort_batch, abort_unnamed_batch, commit_batch, prepare_streams
from headrace.spark.sink_tasks import TaskAttempt, write_task
from headrace.spark.written_batches import BatchName, TaskReport, WrittenBatch


@pytest.fixture
def sink() -> SinkDouble:
    return SinkDouble(["t", "u"])


def events(rows: Sequence[Row]) -> list[bytes]:
    return sorted(event for event, _ in rows)


def test_the_events_of_all_tasks_become_visible_together(sink: SinkDouble) -> None:
    driver = Driver(sink, options())
    reports = [driver.task(rows_of(b"a", b"b", key="k")), driver.task(rows_of(b"c"), partition=1), driver.task()]
    assert sink.rows["t"] == []
    assert len(sink.transactions) == 2, "a task without rows begins no transaction"
    assert driver.commit(*reports) == WrittenBatch(events=3, transactions=2, repeated=False)
    assert sorted(sink.rows["t"], key=lambda row: row[0]) == [(b"a", "k"), (b"b", "k"), (b"c", None)]
    assert sink.epochs == {("t", "spark:1c0f"): 3}
    assert sink.commits == 1
    assert all(writer.detached for writer in sink.opened)


def test_labels_name_query_batch_partition_and_attempt(sink: SinkDouble) -> None:
    Driver(sink, options(transaction_timeout_ms="20000")).task(rows_of(b"a"), partition=7)
    (begun,) = sink.transactions.values()
    assert (begun.label, begun.lease_ms) == ("1c0f/3/7/1", 20_000)


def test_rows_go_to_the_streams_that_they_name(sink: SinkDouble) -> None:
    driver = Driver(sink, options(streams="u"))
    mixed = pa.record_batch(
        [pa.array([b"1", b"2", b"3", b"4"]), pa.array(["u", None, "t", "u"]), pa.array(["x", "y", "z", None])],
        ["event", "stream", "routing_key"],
    )
    written = driver.commit(driver.task(mixed))
    assert written == WrittenBatch(events=4, transactions=2, repeated=False)
    assert sink.rows == {"t": [(b"2", "y"), (b"3", "z")], "u": [(b"1", "x"), (b"4", None)]}
    assert sink.epochs == {("t", "spark:1c0f"): 3}, "one set, under the home stream"


def test_a_batch_without_rows_commits_nothing(sink: SinkDouble) -> None:
    driver = Driver(sink, options())
    empty = rows_of(b"a").slice(0, 0)
    assert driver.commit(driver.task(empty), driver.task()) == WrittenBatch(0, 0, repeated=False)
    assert sink.commits == 0


def test_a_repeated_batch_adds_nothing(sink: SinkDouble) -> None:
    first, again = Driver(sink, options()), Driver(sink, options())
    first.commit(first.task(rows_of(b"a")))
    reports = [again.task(rows_of(b"a"))]  # the task could not ask, or asked too early
    assert again.commit(*reports) == WrittenBatch(0, 0, repeated=True)
    assert events(sink.rows["t"]) == [b"a"]
    assert sink.open_transactions() == []


def test_a_repeated_request_to_commit_is_no_repeated_batch(sink: SinkDouble) -> None:
    """The client repeats the request if its answer is lost. The next answer is that the epoch was committed before."""
    driver = Driver(sink, options())
    report = driver.task(rows_of(b"a"))
    sink.loses_commit_answer = True
    assert driver.commit(report) == WrittenBatch(events=1, transactions=1, repeated=False)
    assert events(sink.rows["t"]) == [b"a"]


def test_a_batch_that_a_later_one_overtook_is_reported(sink: SinkDouble) -> None:
    """Two runs of a job write at the same time. The events of the first one are lost unless it fails."""
    five, six = (Driver(sink, options(), BatchName("nightly", epoch)) for epoch in (5, 6))
    report = five.task(rows_of(b"five"))
    six.commit(six.task(rows_of(b"six")))
    with pytest.raises(IllegalStateError, match="batch 6 of writer spark:nightly was committed while batch 5"):
        five.commit(report)
    assert events(sink.rows["t"]) == [b"six"]
    assert sink.open_transactions() == []


def test_tasks_that_know_of_the_commit_write_nothing(sink: SinkDouble) -> None:
    driver = Driver(sink, options())
    taken: list[int] = []

    def batches() -> Sequence[pa.RecordBatch]:
        taken.append(1)
        return [rows_of(b"a"), rows_of(b"b")]

    report = driver.task(*batches(), repeated=True)
    assert (report.repeated, report.events, report.transactions) == (True, 0, ())
    late = driver.task(rows_of(b"c"), partition=1)  # it asked before another driver committed
    assert driver.commit(report, late) == WrittenBatch(0, 0, repeated=True)
    assert sink.open_transactions() == []
    assert sink.commits == 0


def test_a_task_asks_once_and_only_if_it_has_rows(sink: SinkDouble) -> None:
    asked: list[int] = []

    def is_repeated() -> bool:
        asked.append(1)
        return False

    attempt = TaskAttempt(BATCH, 0, 1)
    write_task(sink, options(), attempt, [], is_repeated)
    assert asked == []
    write_task(sink, options(), attempt, [rows_of(b"a"), rows_of(b"b")], is_repeated)
    assert asked == [1]


def test_a_task_that_fails_aborts_its_transactions(sink: SinkDouble) -> None:
    driver = Driver(sink, options())

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows_of(b"a")
        raise RuntimeError("the user's code")

    with pytest.raises(RuntimeError):
        write_task(sink, driver.options, TaskAttempt(BATCH, 0, 1), failing(), lambda: False)
    assert len(sink.transactions) == 1
    assert sink.open_transactions() == []


@pytest.mark.parametrize(("number", "first_row_s"), [(1, 0.0), (0, 60.0)])
def test_an_attempt_that_begins_after_the_commit_leaves_nothing(
    sink: SinkDouble, number: int, first_row_s: float
) -> None:
    """A copy that speculation started late, or the slow attempt that it replaced."""
    driver, clock_s, taken = Driver(sink, options(streams="u")), [0.0], list[bytes]()
    report = driver.task(rows_of(b"a"))

    def late() -> Iterator[pa.RecordBatch]:
        clock_s[0] = first_row_s
        driver.commit(report)
        for event in (b"a", b"b"):
            taken.append(event)
            yield rows_of(event, stream="u")
            yield rows_of(event)

    attempt = TaskAttempt(BATCH, 0, 2, number)
    told = write_task(sink, driver.options, attempt, late(), lambda: False, monotonic_s=lambda: clock_s[0])
    assert (told.transactions, told.events, told.repeated) == ((), 0, True)
    assert sink.open_transactions() == []
    assert taken == [b"a", b"b"], "Spark's rows are taken to the end"


def test_a_task_on_time_does_not_ask_after_its_begin(sink: SinkDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sink, "committed_epoch", lambda home, _writer: asked.append(home))
    driver = Driver(sink, options())
    driver.task(rows_of(b"a"), rows_of(b"b"))
    assert asked == []
    retry = TaskAttempt(BATCH, 1, 7, number=1)
    assert write_task(sink, driver.options, retry, [rows_of(b"a"), rows_of(b"b")], lambda: False).events == 2
    assert asked == ["t"]


def test_only_reported_attempts_count(sink: SinkDouble) -> None:
    """Speculation, a lost executor, an earlier batch: their transactions are aborted by their labels."""
    driver = Driver(sink, options())
    lost = Driver(sink, options(), BatchName.of_query("1c0f", 2, None))
    lost.task(rows_of(b"a"))
    other = Driver(sink, options(), BatchName.of_query("2d", 3, None))
    other.task(rows_of(b"other query"))
    driver.task(rows_of(b"a"))
    driver.commit(driver.task(rows_of(b"a")))
    assert events(sink.rows["t"]) == [b"a"]
    assert sink.open_transactions() == ["2d/3/0/1"]


def test_a_query_from_a_new_checkpoint_is_another_writer(sink: SinkDouble) -> None:
    for query in ("old", "new"):
        driver = Driver(sink, options(writer_id="w"), BatchName.of_query(query, 0, "w"))
        driver.commit(driver.task(rows_of(query.encode())))
    assert events(sink.rows["t"]) == [b"new", b"old"]
    assert sorted(sink.epochs) == [("t", "spark:new:w"), ("t", "spark:old:w")]


def test_an_aborted_batch_leaves_nothing_open(sink: SinkDouble) -> None:
    driver = Driver(sink, options(streams="u"))
    driver.task(rows_of(b"a", stream="u"))
    driver.task(rows_of(b"a"))
    abort_batch(sink, driver.options, driver.batch)
    assert sink.open_transactions() == []
    sink.abort_error = UnavailableError("no route")
    abort_batch(sink, driver.options, driver.batch)  # Spark reports the error of the task, not this one


def test_a_batch_without_reports_is_found_by_its_checkpoint(sink: SinkDouble) -> None:
    mine, other = options(streams="u", checkpointLocation="/mine"), options(checkpointLocation="/other")
    Driver(sink, mine).task(rows_of(b"a"), rows_of(b"b", stream="u"))
    Driver(sink, mine, BatchName.of_query("1c0f", 4, None)).task(rows_of(b"a"))
    Driver(sink, other, BatchName.of_query("2d", 3, None)).task(rows_of(b"a"))
    Driver(sink, options(), BatchName.of_query("3e", 3, None)).task(rows_of(b"a"))
    abort_unnamed_batch(sink, mine, BATCH.epoch)
    left = [f"1c0f/4/0/1/{mine.checkpoint_mark}", f"2d/3/0/1/{other.checkpoint_mark}", "3e/3/0/1"]
    assert sink.open_transactions() == left
    sink.abort_error = UnavailableError("no route")
    abort_unnamed_batch(sink, mine, 4)


def test_an_expired_lease_fails_the_commit_with_its_remedy(sink: SinkDouble) -> None:
    driver = Driver(sink, options())
    reports = [driver.task(rows_of(b"a")), driver.task(rows_of(b"b"), partition=1)]
    ((_, expired),) = reports[0].transactions
    sink.transactions[expired].state = TransactionState.ABORTED
    with pytest.raises(IllegalStateError, match="larger transaction_timeout_ms than 43200000") as raised:
        driver.commit(*reports)
    assert raised.value.specific_code == "transaction_aborted"
    assert sink.rows["t"] == []
    assert sink.open_transactions() == [], "the other transactions of the batch do not wait for their leases"


def test_too_many_transactions_are_refused_before_the_commit(sink: SinkDouble) -> None:
    driver = Driver(sink, options())
    driver.task(rows_of(b"a"))
    many = TaskReport(BATCH, tuple(("t", f"{n:032x}") for n in range(3000)), 3000, repeated=False)
    with pytest.raises(InvalidRequestError, match="use coalesce"):
        driver.commit(many)
    assert sink.commits == 0
    assert sink.open_transactions() == []


def test_the_report_of_another_batch_is_not_committed(sink: SinkDouble) -> None:
    driver = Driver(sink, options())
    report = Driver(sink, options(), BatchName.of_query("1c0f", 2, None)).task(rows_of(b"a"))
    with pytest.raises(CorruptError):
        driver.commit(report)
    assert sink.commits == 0


def test_the_commit_waits_until_the_events_are_visible(sink: SinkDouble) -> None:
    sink.polls_until_visible = 3
    driver = Driver(sink, options(transaction_status_poll_interval_ms="7"))
    driver.commit(driver.task(rows_of(b"a")))
    assert events(sink.rows["t"]) == [b"a"]
    assert driver.slept == [0.007] * 3


def test_without_read_after_write_the_commit_does_not_wait(sink: SinkDouble) -> None:
    sink.polls_until_visible = 3
    driver = Driver(sink, options(read_after_write_consistency="false"))
    driver.commit(driver.task(rows_of(b"a")))
    assert driver.slept == []
    assert sink.rows["t"] == []


def test_a_commit_that_makes_no_progress_is_reported(sink: SinkDouble) -> None:
    sink.polls_until_visible = 1_000_000
    driver = Driver(sink, options(patience_s="2"))
    with pytest.raises(UnavailableError, match="not visible"):
        driver.commit(driver.task(rows_of(b"a")))
    assert sum(driver.slept) == pytest.approx(2.05, abs=0.06)


def test_waiting_does_not_list_the_transactions(sink: SinkDouble) -> None:
    sink.polls_until_visible = 3
    driver = Driver(sink, options(streams="u"))
    driver.commit(driver.task(rows_of(b"a")), driver.task(rows_of(b"b"), partition=1))
    assert (len(driver.slept), sink.listings) == (3, 0)


def test_a_commit_that_makes_progress_has_time(sink: SinkDouble) -> None:
    """One of two transactions is visible after 1.5 s, the other after 3.5 s; without progress 2 s are allowed."""
    sink.polls_until_visible = 1_000_000
    driver = Driver(sink, options(patience_s="2"))
    reports = [driver.task(rows_of(event), partition=number) for number, event in enumerate((b"a", b"b"))]
    first, last = (transaction for report in reports for _, transaction in report.transactions)
    visible_at = {30: first, 70: last}
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if (transaction := visible_at.get(len(slept))) is not None:
            sink.transactions[transaction].state = TransactionState.COMMITTED

    commit_batch(sink, driver.options, BATCH, reports, sleep)
    assert (len(slept), sink.listings) == (70, 1)


def test_a_sealed_home_is_not_a_matter_of_leases(sink: SinkDouble) -> None:
    driver = Driver(sink, options(streams="u"))
    report = driver.task(rows_of(b"a", stream="u"))
    sink.sealed_streams.add("t")
    with pytest.raises(SealedError, match="set 'stream' to another one") as raised:
        driver.commit(report)
    assert "transaction_timeout_ms" not in raised.value.message
    assert sink.open_transactions() == []


def test_a_null_event_is_refused(sink: SinkDouble) -> None:
    driver = Driver(sink, options())
    null = pa.record_batch([pa.array([b"a", None], pa.binary())], ["event"])
    with pytest.raises(InvalidRequestError, match="1 rows have null in the column 'event'"):
        driver.task(null)


def test_a_row_for_an_unlisted_stream_is_refused(sink: SinkDouble) -> None:
    driver = Driver(sink, options(streams="u"))
    with pytest.raises(InvalidRequestError, match="stream 'v'"):
        driver.task(rows_of(b"a", stream="u"), rows_of(b"b", stream="v"))
    assert sink.open_transactions() == []


def test_an_event_too_large_names_the_way_out(sink: SinkDouble) -> None:
    large = rows_of(b"x" * (8 * 1024 * 1024 + 1))
    with pytest.raises(InvalidRequestError, match="write with exactly_once=false"):
        Driver(sink, options()).task(large, partition=4)
    written = Driver(sink, options(exactly_once="false")).task(large)
    assert written.events == 1


def test_at_least_once_is_durable_when_the_task_ends(sink: SinkDouble) -> None:
    driver = Driver(sink, options(exactly_once="false", streams="u"))
    report = driver.task(rows_of(b"a"), rows_of(b"b", stream="u"))
    assert (sink.rows["t"], sink.rows["u"]) == ([(b"a", None)], [(b"b", None)])
    assert all(writer.closed for writer in sink.writers)
    assert driver.commit(report) == WrittenBatch(events=2, transactions=0, repeated=False)
    assert (sink.commits, sink.transactions) == (0, {})


@pytest.mark.parametrize(("scope", "more"), list(product((True, False), ({}, {"default_num_segments": "4"}))))
def test_missing_streams_are_created(scope: bool, more: dict[str, str]) -> None:
    sink = SinkDouble(["t"])
    sink.scope = scope
    prepare_streams(sink, options(streams="new", **more))
    assert {name: scaling for name, (scaling, _) in sink.created.items()} == {
        "new": ScalingPolicy.fixed(int(more.get("default_num_segments", 1)))
    }
    assert sink.scope


def _sealed(sink: SinkDouble) -> None:
    sink.sealed_streams.add("t")


def _without_scope(sink: SinkDouble) -> None:
    sink.scope = False
    del sink.rows["t"]


def _without_stream(sink: SinkDouble) -> None:
    del sink.rows["t"]


@pytest.mark.parametrize(
    ("broken", "more", "error", "message"),
    [
        (_sealed, {}, SealedError, "s/t is sealed"),
        (_without_stream, {"allow_create_stream": "false"}, NotFoundError, "no stream s/t.*allow_create_stream=true"),
        (_without_scope, {"allow_create_scope": "false"}, NotFoundError, "no scope s.*allow_create_scope=true"),
    ],
)
def test_a_target_that_cannot_be_written_is_named(
    sink: SinkDouble, broken: Callable[[SinkDouble], None], more: dict[str, str], error: type[Exception], message: str
) -> None:
    broken(sink)
    with pytest.raises(error, match=message):
        prepare_streams(sink, options(**more))
    assert sink.created == {}


def test_a_report_survives_its_way_as_text(sink: SinkDouble) -> None:
    report = Driver(sink, options(streams="u")).task(rows_of(b"a", stream="u"), rows_of(b"b", stream="t"))
    assert TaskReport.from_text(report.to_text()) == report

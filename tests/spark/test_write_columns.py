"""Columns that are written: which are taken, and rows of Spark 4.0 as record batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.spark import write_columns
from headrace.spark.write_columns import batches_of_rows, check_columns
from headrace.spark.write_options import write_options
from headrace.spark.written_batches import RUNS_KEPT_MAX, RepeatedBatches

REQUIRED = {"controller": "http://c", "scope": "s", "stream": "t"}
ONE, SEVERAL = write_options(REQUIRED, streaming=True), write_options(REQUIRED | {"streams": "u"}, streaming=True)
EVENT, KEY, STREAM = ("event", "binary"), ("routing_key", "string"), ("stream", "string")


@pytest.mark.parametrize("columns", [[EVENT], [("event", "string"), KEY], [KEY, EVENT]])
def test_events_and_keys_are_taken(columns: list[tuple[str, str]]) -> None:
    check_columns(columns, ONE)


def test_a_stream_column_is_taken_with_a_list_of_streams() -> None:
    check_columns([EVENT, STREAM], SEVERAL)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([KEY], "no column 'event'"),
        ([EVENT, EVENT], "occurs twice"),
        ([("event", "bigint")], "has the type bigint, not binary or string"),
        ([EVENT, ("routing_key", "binary")], "has the type binary, not string"),
        ([EVENT, ("offset", "bigint")], "'offset' cannot be written"),
        ([EVENT, STREAM], "needs the option 'streams'"),
    ],
)
def test_other_columns_are_refused(columns: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_columns(columns, ONE)


def test_rows_keep_their_order_and_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_columns, "ROWS_PER_BATCH", 2)
    rows = [("k", bytearray(b"a")), (None, b"b"), ("é", None), ("k", b"c")]
    made = list(batches_of_rows(rows, [KEY, EVENT]))
    assert [batch.num_rows for batch in made] == [1, 2, 1]
    assert pa.Table.from_batches(made).to_pydict() == {
        "routing_key": ["k", None, "é", "k"],
        "event": [b"a", b"b", None, b"c"],
    }
    assert [field.type for field in made[0].schema] == [pa.string(), pa.binary()]


def test_large_rows_make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_columns, "BYTES_PER_BATCH", 10)
    made = list(batches_of_rows([("x" * 6,)] * 5, [("event", "string")]))
    assert [batch.num_rows for batch in made] == [1, 2, 2]
    assert list(batches_of_rows([], [EVENT])) == []


def test_the_first_row_does_not_wait_for_others() -> None:
    def rows() -> Iterator[tuple[bytes]]:
        yield (b"first",)
        raise ValueError("the task fails before its second row")

    made = batches_of_rows(rows(), [EVENT])
    assert next(made).to_pydict() == {"event": [b"first"]}
    with pytest.raises(ValueError, match="before its second row"):
        next(made)


class Controller:
    """Counts the questions; the answer is the last epoch that was committed."""

    def __init__(self, last: int | None) -> None:
        self.last, self.asked = last, 0

    def __call__(self) -> int | None:
        self.asked += 1
        return self.last


def test_only_the_first_batch_of_a_run_is_asked_about() -> None:
    repeated, controller = RepeatedBatches(), Controller(4)
    answers = [repeated.is_repeated("run", epoch, controller) for epoch in (4, 4, 5, 6)]
    assert answers == [True, True, False, False]
    assert controller.asked == 1


def test_another_run_or_an_earlier_batch_is_asked_again() -> None:
    repeated, controller = RepeatedBatches(), Controller(5)
    assert not repeated.is_repeated("run", 6, controller)
    assert repeated.is_repeated("next run", 5, controller)
    assert repeated.is_repeated("run", 5, controller), "a driver that was replaced and goes on"
    assert controller.asked == 3
    assert repeated.is_repeated(None, 5, controller)
    assert repeated.is_repeated(None, 5, controller)
    assert controller.asked == 5, "without the name of the run each task asks"


def test_a_writer_without_a_commit_repeats_nothing() -> None:
    assert not RepeatedBatches().is_repeated("run", 0, Controller(None))


def test_a_batch_before_the_last_one_is_no_repetition() -> None:
    """The checkpoint is old: the batch may have other events than the one that was committed."""
    repeated, controller = RepeatedBatches(), Controller(5)
    for _ in range(2):
        with pytest.raises(IllegalStateError, match="committed batch 5, and now runs batch 4") as raised:
            repeated.is_repeated("run", 4, controller)
        assert raised.value.specific_code == "later_batch_committed"
    assert repeated.is_repeated("run", 5, controller)


def test_old_runs_are_forgotten() -> None:
    repeated, controller = RepeatedBatches(), Controller(None)
    for run in range(RUNS_KEPT_MAX + 1):
        repeated.is_repeated(run, 0, controller)
    repeated.is_repeated(RUNS_KEPT_MAX, 0, controller)
    assert controller.asked == RUNS_KEPT_MAX + 1
    repeated.is_repeated(0, 0, controller)
    assert controller.asked == RUNS_KEPT_MAX + 2

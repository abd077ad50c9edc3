"""`write_batch` and `write_events` without a Spark session: a DataFrame that computes its rows in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from sink_double import SinkDouble

from headrace.model.errors import IllegalStateError, UnavailableError
from headrace.spark.engines import task_writes, write_functions
from headrace.spark.engines.task_writes import BATCH_ID, QUERY_ID, RUN_ID
from headrace.spark.engines.write_functions import write_batch, write_events

OPTIONS = {"controller": "http://c", "scope": "s", "stream": "t"}

MapBatches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass
class FrameDouble:
    """The part of a DataFrame that the functions use. `properties` are those of the thread of a streaming query.

    `run` is the run of the query that Spark knows, if it does.
    """

    events: list[bytes]
    properties: dict[str, str] = field(default_factory=dict)
    run: str | None = None
    computed: int = 0

    @property
    def sparkSession(self) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=self.properties.get), run=self.run)

    @property
    def schema(self) -> Any:
        kind = SimpleNamespace(simpleString=lambda: "binary")
        return SimpleNamespace(fields=[SimpleNamespace(name="event", dataType=kind)])

    def mapInArrow(self, function: MapBatches, schema: str) -> Any:
        def collect() -> list[dict[str, str]]:
            self.computed += 1
            rows = pa.RecordBatch.from_arrays([pa.array(self.events, pa.binary())], ["event"])
            return [row for batch in function([rows]) for row in batch.to_pylist()]

        return SimpleNamespace(collect=collect)


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> SinkDouble:
    sink = SinkDouble()
    task = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 7, attemptNumber=lambda: 0)
    for module in (task_writes, write_functions):
        monkeypatch.setattr(module, "open_sink", lambda _options: sink)
    monkeypatch.setattr(task_writes, "task_context", lambda: task)
    monkeypatch.setattr(write_functions, "active_run", lambda session, _query_id: session.run)
    monkeypatch.setattr(write_functions, "_written", {})
    return sink


def batch(number: int, *events: bytes, run: str | None = "run") -> Any:
    return FrameDouble(list(events), {QUERY_ID: "1c0f", BATCH_ID: str(number), RUN_ID: "the user's job group"}, run)


def test_a_second_write_of_a_batch_is_no_repetition(sink: SinkDouble) -> None:
    write_batch(batch(0, b"a"), 0, OPTIONS)
    with pytest.raises(IllegalStateError, match="give each write of a batch a 'writer_id'"):
        write_batch(batch(0, b"b"), 0, OPTIONS)
    write_batch(batch(0, b"b"), 0, OPTIONS | {"writer_id": "second"})
    assert sink.rows["t"] == [(b"a", None), (b"b", None)]


@pytest.mark.parametrize("run", ["second run", None])
def test_a_batch_of_a_new_run_is_a_repetition(sink: SinkDouble, run: str | None) -> None:
    """Also in the same process, with a job group that the user has set, and if the run is not known."""
    write_batch(batch(0, b"a", run=run and "first run"), 0, OPTIONS)
    assert write_batch(batch(0, b"a", run=run), 0, OPTIONS).repeated
    assert sink.rows["t"] == [(b"a", None)]


def test_a_batch_has_the_number_that_spark_gives_it(sink: SinkDouble) -> None:
    """With a number of its own, the first batch of each run would be taken for a repetition and be lost."""
    write_batch(batch(0, b"a"), 0, OPTIONS)
    later = batch(1, b"b", run="next")
    with pytest.raises(IllegalStateError, match="Spark runs batch 1, not 0"):
        write_batch(later, 0, OPTIONS)
    assert later.computed == 0
    write_batch(later, 1, OPTIONS)
    assert sink.rows["t"] == [(b"a", None), (b"b", None)]


def test_a_commit_that_fails_leaves_nothing_open(sink: SinkDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_arguments: object, **_named: object) -> bool:
        assert len(sink.open_transactions()) == 1
        raise UnavailableError("no answer")

    monkeypatch.setattr(sink, "commit", failing)
    frame: Any = FrameDouble([b"a"])
    with pytest.raises(UnavailableError):
        write_events(frame, OPTIONS)
    assert sink.open_transactions() == []

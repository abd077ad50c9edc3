"""The values of a write: which batch of which writer it is, what a task reports, and what the driver returns.

Spark repeats a batch of a query with the same number after a crash. The number is the epoch of the commit, and the
query's id, which its checkpoint keeps, is the writer. So the commit of a repeated batch is recognised at any time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.model.errors import IllegalStateError

WRITER_PREFIX: Final = "spark:"
"""Begins the names of all writers of this connector, so that they are not those of other programs."""


@dataclass(frozen=True, slots=True)
class BatchName:
    """One write of a writer. The transactions of its tasks have labels that begin with `label_prefix`."""

    name: str
    epoch: int

    @classmethod
    def of_query(cls, query_id: str, batch_id: int, writer_id: str | None) -> BatchName:
        """The batch of a streaming query. A new checkpoint is a new query, and so a new writer."""
        return cls(query_id if writer_id is None else f"{query_id}:{writer_id}", batch_id)

    @property
    def writer(self) -> str:
        return WRITER_PREFIX + self.name

    @property
    def label_prefix(self) -> str:
        return f"{self.name}/{self.epoch}/"

    def label(self, partition: int, attempt: int, mark: str | None) -> str:
        """The label of the transactions of one attempt at one partition; `mark` is that of the query's checkpoint."""
        return f"{self.label_prefix}{partition}/{attempt}" + (f"/{mark}" if mark else "")

    @classmethod
    def of_label(cls, label: str) -> BatchName | None:
        """The batch of a label; None if it is not one of these."""
        name, _, rest = label.partition("/")
        epoch = rest.partition("/")[0]
        return cls(name, int(epoch)) if epoch.isdecimal() else None


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task wrote. `transactions` are pairs of a stream and the id of a transaction; they are open and durable.

    `repeated`: the batch had been committed before, so that the task wrote nothing.
    """

    batch: BatchName
    transactions: tuple[tuple[str, str], ...]
    events: int
    repeated: bool

    def to_text(self) -> str:
        document = {
            "name": self.batch.name,
            "epoch": self.batch.epoch,
            "transactions": self.transactions,
            "events": self.events,
            "repeated": self.repeated,
        }
        return json.dumps(document)

    @classmethod
    def from_text(cls, text: str) -> TaskReport:
        document = json.loads(text)
        return cls(
            batch=BatchName(document["name"], document["epoch"]),
            transactions=tuple((stream, transaction) for stream, transaction in document["transactions"]),
            events=document["events"],
            repeated=document["repeated"],
        )


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """The result of a write.

    `repeated`: an earlier run had committed the batch, so that this one added nothing; `events` is then 0.
    """

    events: int
    transactions: int
    repeated: bool


def transactions_of(reports: Iterable[TaskReport]) -> dict[str, Sequence[str]]:
    """The transactions of all tasks by stream, in the order of the tasks."""
    by_stream: dict[str, list[str]] = {}
    for report in reports:
        for stream, transaction in report.transactions:
            by_stream.setdefault(stream, []).append(transaction)
    return dict(by_stream)


# Whether a batch was committed by an earlier run of its query; tasks ask with as few requests as possible.
#
# Only the first batch of a run can be a repetition, because a run commits each batch before it begins the next. So a
# Python worker asks the controller for the first batch that it sees of a run, and needs no request for the later ones.
# The answer only saves work: the commit itself recognises a repetition in any case.

RUNS_KEPT_MAX: Final = 100


class RepeatedBatches:
    """Remembers, for each run of a query, the first batch that this process saw. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[Hashable, tuple[int, bool]] = {}

    def is_repeated(self, run: Hashable | None, epoch: int, committed_epoch: Callable[[], int | None]) -> bool:
        """Whether a batch repeats the last one that was committed. Raises as `is_repetition`.

        `run` names a run of a query and its sink, None if it is not known.
        """
        with self._lock:
            first = None if run is None else self._first.get(run)
        if first is not None and epoch >= first[0]:
            return first[1] if epoch == first[0] else False
        repeated = is_repetition(epoch, committed_epoch())
        if run is not None:
            with self._lock:
                self._first[run] = (epoch, repeated)
                while len(self._first) > RUNS_KEPT_MAX:
                    del self._first[next(iter(self._first))]
        return repeated


def is_repetition(epoch: int, committed_epoch: int | None) -> bool:
    """Whether a query runs the batch again that it committed last.

    Raises:
        IllegalStateError: code "later_batch_committed": it runs an older one, which only an old checkpoint can be the
            reason for. To skip the batch could lose events, since it may now end at another place in its sources.
    """
    if committed_epoch is not None and epoch < committed_epoch:
        raise IllegalStateError(
            f"this query has already committed batch {committed_epoch}, and now runs batch {epoch}: its checkpoint is"
            " a copy, or an older state. Continue with the newest checkpoint, or start with a new one, which writes"
            " again what it reads again",
            details={"batch": epoch, "committed": committed_epoch},
            code="later_batch_committed",
        )
    return epoch == committed_epoch

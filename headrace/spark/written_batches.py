"""The values of a write: which batch of which writer it is, what a task reports, and what the driver returns.

Spark repeats a batch of a query with the same number after a crash. The number is the epoch of the commit, and the
query's id, which its checkpoint keeps, is the writer. So the commit of a repeated batch is recognised at any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

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
    found: dict[str, list[str]] = {}
    for report in reports:
        for stream, transaction in report.transactions:
            found.setdefault(stream, []).append(transaction)
    return dict(found)

"""Plans micro-batches as manifests: one file per batch, and never more than one that the query has not finished.

The newest manifest is the planner's whole state: its end is where the next batch starts. A crash at any point leaves
either the same newest manifest or one more, and Spark repeats an unfinished batch from the same file. Files that are
created only once keep two planners of one directory from planning different batches under one number.

Not more than one, because the file source takes files in the order of their modification times, which may be equal.
"""

from __future__ import annotations

import secrets

from headrace.model.errors import CorruptError
from headrace.spark.manifests import (
    START_NAME,
    ManifestHead,
    manifest_bytes,
    manifest_head,
    manifest_name,
    manifest_number,
)
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.partitions import Partition
from headrace.spark.plan_files import PlanFiles

MANIFESTS_KEPT = 2
"""The newest, which Spark may read again, and the one before, from which a failed one is planned again."""


class ManifestPlanner:
    """Belongs to one thread at a time. `open` it before anything else."""

    def __init__(self, batches: MicroBatches, files: PlanFiles) -> None:
        self.batches = batches
        self.files = files
        self._planner = secrets.token_hex(8)
        self._number = -1
        self._end = ""
        self._failed = False
        self._reached_end = False

    def open(self) -> None:
        """Continues after the newest manifest, or records where the first batch starts.

        A manifest that holds a problem becomes an empty batch, so that a query which is started again gets past it.
        """
        numbers = self._numbers()
        if not numbers:
            self._number, self._end = -1, self._recorded_start()
            return
        self._number = numbers[-1]
        head = self._head(self._number)
        self._end, self._failed = head.end, head.problem is not None
        self.recover()

    def step(self, finished: int | None) -> bool:
        """Plans the next batch if the query has finished the last one and there is something to read.

        `finished` is the number of batches less one that the query's file source has finished, None if unknown.
        """
        if not self.wants_batch(finished):
            return False
        end = self.batches.latest(self._end, self.batches.options.approx_bytes_per_trigger)
        self._reached_end = end == self._end
        if self._reached_end:
            return False
        self._write(ManifestHead(end, self._planner), self.batches.partitions(self._end, end))
        return True

    def wants_batch(self, finished: int | None) -> bool:
        """Whether the newest manifest is finished.

        Raises:
            CorruptError: the query's checkpoint belongs to another directory of plans.
        """
        if finished is None:
            return self._number < 0
        if not self._number - 1 <= finished <= self._number:
            raise CorruptError(
                f"the query has finished batch {finished}, but the plans in {self.files.url} end with batch"
                f" {self._number}: use a directory of plans with one checkpoint only, and a new one with a new one",
                code="foreign_checkpoint",
            )
        return finished == self._number

    def caught_up(self, finished: int | None) -> bool:
        """Whether there was nothing to read at the last step, and every batch is finished."""
        return self._reached_end and self.wants_batch(finished)

    def fail(self, problem: Exception) -> None:
        """Hands the problem to the query, as a batch that fails with it."""
        self._write(ManifestHead(self._end, self._planner, f"{type(problem).__name__}: {problem}"), ())
        self._failed = True

    def recover(self) -> None:
        """Turns a failed batch into an empty one, if the newest is one."""
        if self._failed:
            data = manifest_bytes(ManifestHead(self._end, self._planner), ())
            self.files.replace(manifest_name(self._number), data)
            self._failed = False

    def _write(self, head: ManifestHead, partitions: list[Partition] | tuple[()]) -> None:
        number = self._number + 1
        if not self.files.create(manifest_name(number), manifest_bytes(head, partitions)):
            raise CorruptError(
                f"another planner has written batch {number} to {self.files.url}: run one query per directory of plans",
                code="foreign_checkpoint",
            )
        self._number, self._end = number, head.end
        for old in self._numbers()[:-MANIFESTS_KEPT]:
            self.files.delete(manifest_name(old))

    def _numbers(self) -> list[int]:
        numbers = (manifest_number(name) for name in self.files.names())
        return sorted(number for number in numbers if number is not None)

    def _head(self, number: int) -> ManifestHead:
        name = manifest_name(number)
        return manifest_head(name, self.files.read(name) or b"")

    def _recorded_start(self) -> str:
        """The same start for ever, also if "latest" is meant and the driver is lost before the first batch."""
        head = ManifestHead(self.batches.initial(), self._planner)
        if self.files.create(START_NAME, manifest_bytes(head, ())):
            return head.end
        return manifest_head(START_NAME, self.files.read(START_NAME) or b"").end

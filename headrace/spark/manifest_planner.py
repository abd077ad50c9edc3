"""Plans micro-batches as manifests: one file per batch, and never more than one that the query has not finished.

The newest manifest is the planner's whole state: its end is where the next batch starts. A crash at any point leaves
either the same newest manifest or one more, and Spark repeats an unfinished batch from the same file. Files that are
created only once keep two planners of one directory from planning different batches under one number.

Not more than one, because the file source takes files in the order of their modification times, which may be equal.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from headrace.model.errors import CorruptError, UnavailableError
from headrace.spark.checkpoints import finished_plan
from headrace.spark.manifests import (
    CHECKPOINT_NAME,
    START_NAME,
    ManifestHead,
    manifest_bytes,
    manifest_head,
    manifest_name,
    manifest_number,
)
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.plan_files import PLANS_REFUSED, PlanFiles

MANIFESTS_KEPT = 2
"""The newest, which Spark may read again, and the one before, from which a failed one is planned again."""

REPEAT_S = 0.5

T = TypeVar("T")


class ManifestPlanner:
    """Belongs to one thread at a time. `open` it before anything else.

    A call of `files` that fails is repeated for `patience_s`.
    """

    def __init__(self, batches: MicroBatches, files: PlanFiles) -> None:
        self.batches = batches
        self.files = files
        self._planner = secrets.token_hex(8)
        self._number = -1
        self._end = ""
        self._failed = False
        self._reached_end = False
        self._checkpoint: tuple[str, int] | None = None
        self.is_ahead = False
        """Whether `open` knew from the checkpoint what a query that starts now has to read."""

    def open(self) -> None:
        """Continues after the newest manifest, or records where the first batch starts.

        A manifest that holds a problem is planned again: the query that failed with it has read nothing.
        """
        numbers = self._numbers()
        if not numbers:
            self._number, self._end = -1, self._recorded_start()
        else:
            self._number = numbers[-1]
            head = self._head_of(manifest_name(self._number))
            self._end, self._failed = head.end, head.problem is not None
            self.recover(plan=True)
        self._checkpoint = self._recorded_checkpoint()
        self.is_ahead = self.plan_ahead()

    def plan_ahead(self) -> bool:
        """Plans the next batch if the checkpoint says that the newest is finished; whether the checkpoint knows.

        A query with trigger(availableNow=True) lists the plans only once, before it can report progress.
        """
        if self._number < 0:
            self.step(None)
            return True
        finished = None if self._checkpoint is None else finished_plan(*self._checkpoint)
        if finished not in (self._number - 1, self._number):
            return False
        self.step(finished)
        return True

    def record_checkpoint(self, checkpoint: str, source: int) -> None:
        """Keeps where the query's checkpoint is for the next start, see `finished_plan`."""
        if self._checkpoint != (checkpoint, source):
            self._checkpoint = (checkpoint, source)
            data = json.dumps({"checkpoint": checkpoint, "source": source}).encode()
            with contextlib.suppress(UnavailableError, OSError):  # then the next start does not know it
                self.files.replace(CHECKPOINT_NAME, data)

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
        data = self._planned(end)
        # Not after the new one: if deleting fails, the newest manifest must be one that is finished.
        for old in self._numbers()[: 1 - MANIFESTS_KEPT]:
            self._repeat(partial(self.files.delete, manifest_name(old)))
        self._take(self._repeat(lambda: self.files.create(manifest_name(self._number + 1), data)), end)
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
        head = ManifestHead(self._end, self._planner, f"{type(problem).__name__}: {problem}")
        self._take(self.files.create(manifest_name(self._number + 1), manifest_bytes(head, ())), self._end)
        self._failed = True

    def recover(self, *, plan: bool = False) -> None:
        """Turns a failed batch into one that does not fail, if the newest is one: empty, or with `plan` as usual."""
        if self._failed:
            end = self.batches.latest(self._end, self.batches.options.approx_bytes_per_trigger) if plan else self._end
            data = self._planned(end) if plan else manifest_bytes(ManifestHead(end, self._planner), ())
            self._repeat(lambda: self.files.replace(manifest_name(self._number), data))
            self._end, self._failed = end, False

    def _planned(self, end: str) -> bytes:
        return manifest_bytes(ManifestHead(end, self._planner), self.batches.partitions(self._end, end))

    def _take(self, is_own: bool, end: str) -> None:
        """Goes on to the next manifest, if this planner has created it."""
        number = self._number + 1
        if not is_own:
            raise CorruptError(
                f"another planner has written batch {number} to {self.files.url}: run one query per directory of plans",
                code="foreign_checkpoint",
            )
        self._number, self._end = number, end

    def _repeat(self, call: Callable[[], T]) -> T:
        """The call's result, repeated while it fails with what can pass."""
        deadline_s = time.monotonic() + self.batches.options.patience_s
        while True:
            try:
                return call()
            except (UnavailableError, OSError) as error:
                refused = isinstance(error, (FileNotFoundError, PermissionError))
                refused = refused or getattr(error, "specific_code", None) == PLANS_REFUSED
                if refused or time.monotonic() >= deadline_s:
                    raise
            time.sleep(REPEAT_S)

    def _numbers(self) -> list[int]:
        numbers = (manifest_number(name) for name in self._repeat(self.files.names))
        return sorted(number for number in numbers if number is not None)

    def _head_of(self, name: str) -> ManifestHead:
        return manifest_head(name, self._repeat(lambda: self.files.read(name)) or b"")

    def _recorded_checkpoint(self) -> tuple[str, int] | None:
        try:
            document = json.loads(self._repeat(lambda: self.files.read(CHECKPOINT_NAME)) or b"null")
            return None if document is None else (str(document["checkpoint"]), int(document["source"]))
        except (ValueError, KeyError, TypeError):
            return None

    def _recorded_start(self) -> str:
        """The same start for ever, also if "latest" is meant and the driver is lost before the first batch."""
        head = ManifestHead(self.batches.initial(), self._planner)
        if self._repeat(lambda: self.files.create(START_NAME, manifest_bytes(head, ()))):
            return head.end
        return self._head_of(START_NAME).end

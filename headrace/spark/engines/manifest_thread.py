"""The thread that plans batches for the queries over a directory of manifests, as long as the session exists.

It finds a query by the directory in its progress, not by a handle, so that any way to start one works, also one that
starts it again after a failure, such as GlueContext.forEachBatch. Spark reports progress after it has committed a
batch, so a batch that is reported is finished.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from headrace.model.errors import CorruptError
from headrace.spark.log_lines import show_log_lines
from headrace.spark.manifest_planner import ManifestPlanner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.05
"""How soon the end of a batch is noticed. Reading a query's progress takes about a millisecond."""

_log = logging.getLogger(__name__)
_running: dict[str, ManifestThread] = {}
_lock = Lock()


def plan_for_queries(spark: SparkSession, planner: ManifestPlanner) -> ManifestThread:
    """Starts planning. A planner of the same directory from an earlier call stops first."""
    show_log_lines()
    with _lock:
        former = _running.get(planner.files.url)
        if former is not None:
            former.stop()
        thread = ManifestThread(spark, planner)
        _running[planner.files.url] = thread
        return thread


class ManifestThread:
    """Plans whenever a query over the planner's directory has finished what was planned."""

    def __init__(self, spark: SparkSession, planner: ManifestPlanner) -> None:
        self._spark = spark
        self._planner = planner
        self._failed = False
        self._stopping = Event()
        self.caught_up = Event()
        """Set when everything up to the end was read, and the query has finished all batches."""
        self._thread = Thread(target=self._run, name="headrace-plans", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and self._spark.sparkContext._jsc is not None:
                self._turn(list(self._queries()))
                self._stopping.wait(POLL_S)
        except Exception:  # noqa: BLE001 - pyspark's connection to its JVM ends in many ways
            if self._spark.sparkContext._jsc is not None:
                _log.exception("event=spark_planner_stopped plans=%r", self._planner.files.url)
        finally:
            self._planner.batches.close()

    def _turn(self, queries: list[tuple[StreamingQuery, int | None]]) -> None:
        if not queries:
            if self._failed:
                self._planner.recover()
                self._failed = False
            return
        if self._failed:
            return  # until the query has failed with the problem
        try:
            finished = self._finished(queries)
            self._planner.step(finished)
            if self._planner.caught_up(finished):
                self.caught_up.set()
        except Exception as problem:  # noqa: BLE001 - after any error the query must not wait for a plan for ever
            self._fail(problem, queries)

    def _finished(self, queries: list[tuple[StreamingQuery, int | None]]) -> int | None:
        """The last batch that the query has finished, None if it has not said so yet.

        Two queries would each need every plan until they have read it, but plans are deleted when one has.
        """
        finished = [batch for _, batch in queries if batch is not None]
        if len(finished) > 1:
            raise CorruptError(
                f"{len(finished)} queries read the plans in {self._planner.files.url}: call read_stream for each, with"
                " a directory of its own",
                code="foreign_checkpoint",
            )
        return finished[0] if finished else None

    def _fail(self, problem: Exception, queries: list[tuple[StreamingQuery, int | None]]) -> None:
        self._failed = True
        try:
            self._planner.fail(problem)
        except Exception:  # noqa: BLE001 - the directory itself may be the problem
            _log.exception("event=spark_query_stopped plans=%r error=%r", self._planner.files.url, str(problem))
            for query, _ in queries:
                query.stop()

    def _queries(self) -> Iterator[tuple[StreamingQuery, int | None]]:
        """The queries that read the plans or may do so, as they have not said yet; the batch each has finished."""
        description = f"FileStreamSource[{self._planner.files.url}]"
        for query in self._spark.streams.active:
            progress = query.lastProgress
            if progress is None:
                yield query, None
                continue
            for source in progress["sources"]:
                if source["description"] == description:
                    yield query, _batch(source["endOffset"])


def _batch(offset: object) -> int | None:
    """The file source counts its batches. Its offset is a dict on Spark 3.5, and the text of one later."""
    found = re.search(r"logOffset\D+(\d+)", str(offset))
    return None if found is None else int(found[1])

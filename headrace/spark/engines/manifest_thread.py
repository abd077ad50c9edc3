"""The thread that plans batches for the queries over a directory of manifests, as long as the session exists.

It finds a query by the directory that it reads, not by a handle, so that any way to start one works, also one that
starts it again after a failure, such as GlueContext.forEachBatch. Spark reports progress after it has committed a
batch, so a batch that is reported is finished.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JNetworkError

from headrace.model.errors import CorruptError, IllegalStateError
from headrace.spark.manifest_planner import REPEAT_S, ManifestPlanner
from headrace.spark.python_workers import show_log_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# What pyspark has no call for, asked of the JVM's object of a streaming query. The same on Spark 3.5 and 4.
#
# Where a platform has another object, the public calls have to do: a query is known by its first progress.

INTERRUPTS = 10
INTERRUPT_WAIT_S = 1.0

_FILE_SOURCE = "FileSource["


def source_number(query: StreamingQuery, url: str) -> int | None:
    """The number of the source that reads the files at `url`, among the query's sources of files. None: none does."""
    execution = _execution(query)
    if execution is None:
        progress = query.lastProgress
        named = f"FileStreamSource[{url}]"
        return 0 if progress is not None and any(each["description"] == named for each in progress["sources"]) else None
    leaves = execution.analyzedPlan().collectLeaves().mkString("\n").splitlines()
    sources = [leaf for leaf in leaves if leaf.startswith(_FILE_SOURCE)]
    name = f"{_FILE_SOURCE}{url}]"
    return sources.index(name) if name in sources else None


def checkpoint_of(query: StreamingQuery) -> str | None:
    """The checkpoint location, as `plan_files` takes it: a path of this machine, or a URL. None: not known."""
    execution = _execution(query)
    return None if execution is None else str(execution.resolvedCheckpointRoot()).removeprefix("file:")


def is_available_now(query: StreamingQuery) -> bool:
    """Whether the query lists its sources once and ends when it has read what was there."""
    execution = _execution(query)
    return execution is not None and str(execution.trigger().toString()) in ("AvailableNowTrigger", "OneTimeTrigger")


def end_with_error(query: StreamingQuery) -> None:
    """Ends a query so that it has failed. `stop` alone would end it as if all were well.

    Spark loses an interrupt in some of its calls, so it is repeated.
    """
    try:
        execution = _execution(query)
        for _ in range(0 if execution is None else INTERRUPTS):
            execution.queryExecutionThread().interrupt()
            deadline_s = time.monotonic() + INTERRUPT_WAIT_S
            while query.isActive and time.monotonic() < deadline_s:
                time.sleep(INTERRUPT_WAIT_S / 10)
            if not query.isActive:
                return
        query.stop()
    except Exception:  # noqa: BLE001 - the connection to the JVM has failed
        _log.exception("event=spark_query_not_stopped")


def _execution(query: StreamingQuery) -> Any:
    """Spark's StreamExecution, or None."""
    try:
        return query._jsq.streamingQuery()
    except Py4JNetworkError:
        raise
    except (AttributeError, Py4JError):
        return None


POLL_S = 0.05
"""How soon the end of a batch is noticed. Reading a query's progress takes about a millisecond."""

_log = logging.getLogger(__name__)
_running: dict[str, ManifestThread] = {}
_lock = Lock()


def plan_for_queries(spark: SparkSession, planner: ManifestPlanner) -> ManifestThread:
    """Opens the planner and starts planning.

    A planner of the same directory from an earlier call stops before, so that the new one finds its last plan.
    """
    show_log_lines()
    with _lock:
        former = _running.pop(planner.files.url, None)
        if former is not None:
            former.stop()
        try:
            planner.open()
        except BaseException:
            planner.batches.close()
            if former is not None:  # its query may still run
                _running[planner.files.url] = ManifestThread(spark, former.planner)
            raise
        thread = ManifestThread(spark, planner)
        _running[planner.files.url] = thread
        return thread


class ManifestThread:
    """Plans whenever a query over the planner's directory has finished what was planned."""

    def __init__(self, spark: SparkSession, planner: ManifestPlanner) -> None:
        self._spark = spark
        self.planner = planner
        self._failed = False
        self._readers: list[StreamingQuery] = []
        self._run_id: object = None
        self._stopping = Event()
        self.caught_up = Event()
        """Set when everything up to the end was read, and the query has finished all batches."""
        self.problem: Exception | None = None
        """Why a query was ended that could not be told so by a plan."""
        self._thread = Thread(target=self._run, name="headrace-plans", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    @contextmanager
    def raising_problem(self) -> Iterator[None]:
        """Around waiting for the query: raises the problem for which this thread has ended it."""
        try:
            yield
        except Exception as error:
            if self.problem is not None:
                raise self.problem from error
            raise
        if self.problem is not None:
            raise self.problem

    def _run(self) -> None:
        failing_since_s: float | None = None
        try:
            while not self._stopping.is_set() and self._has_session():
                try:
                    self._turn()
                    failing_since_s, pause_s = None, POLL_S
                except Exception as problem:  # noqa: BLE001 - pyspark's connection to its JVM fails in many ways
                    now_s, pause_s = time.monotonic(), REPEAT_S
                    failing_since_s = now_s if failing_since_s is None else failing_since_s
                    if now_s - failing_since_s >= self.planner.batches.options.patience_s and self._has_session():
                        _log.exception("event=spark_planner_stopped plans=%r", self.planner.files.url)
                        if not self._failed:
                            self._fail(problem)
                        return
                self._stopping.wait(pause_s)
        finally:
            self.planner.batches.close()

    def _has_session(self) -> bool:
        return self._spark.sparkContext._jsc is not None

    def _turn(self) -> None:
        """An error of this is repeated by `_run`. An error of planning fails the query at once."""
        queries = list(self._queries())
        self._readers = [query for query, _ in queries]
        if not queries:
            if self._failed:
                self.planner.recover()
                self._failed = False
            return
        if self._failed:
            return  # until the query has failed with the problem
        for query in self._readers:
            self._begin(query)
        if self._failed:
            return
        try:
            finished = self._finished(queries)
            self.planner.step(finished)
            if self.planner.caught_up(finished):
                self.caught_up.set()
        except Exception as problem:  # noqa: BLE001 - after any error the query must not wait for a plan for ever
            self._fail(problem)

    def _begin(self, query: StreamingQuery) -> None:
        """What a query needs that has just been started.

        With trigger(availableNow=True) it has listed the plans before. If it is not the first one since the planner
        was opened, it may read nothing, and the batch is there for the next one. If the checkpoint cannot be asked, no
        start would ever read another batch.
        """
        checkpoint = checkpoint_of(query)
        if checkpoint is None or query.runId == self._run_id:
            return
        self.planner.record_checkpoint(checkpoint, source_number(query, self.planner.files.url) or 0)
        is_ahead = self._run_id is None and self.planner.is_ahead
        if is_available_now(query) and not is_ahead and not self.planner.plan_ahead():
            problem = IllegalStateError(
                f"it is not known which plans in {self.planner.files.url} the checkpoint {checkpoint} has finished:"
                " trigger(availableNow=True) needs one on this machine or in S3. Use run_until_caught_up",
                code="unknown_checkpoint",
            )
            _log.error("event=spark_query_stopped plans=%r error=%r", self.planner.files.url, str(problem))
            self._end(problem)
        self._run_id = query.runId

    def _finished(self, queries: list[tuple[StreamingQuery, int | None]]) -> int | None:
        """The last batch that the query has finished, None if it has not said so yet.

        Two queries would each need every plan until they have read it, but plans are deleted when one has.
        """
        finished = [batch for _, batch in queries if batch is not None]
        if len(finished) > 1:
            raise CorruptError(
                f"{len(finished)} queries read the plans in {self.planner.files.url}: call read_stream for each, with"
                " a directory of its own",
                code="foreign_checkpoint",
            )
        return finished[0] if finished else None

    def _fail(self, problem: Exception) -> None:
        """Fails the query by a plan, which has the message. Only without that it is ended from outside."""
        self._failed = True
        try:
            self.planner.fail(problem)
        except Exception:  # noqa: BLE001 - the directory itself may be the problem
            _log.exception("event=spark_query_stopped plans=%r error=%r", self.planner.files.url, str(problem))
            self._end(problem)

    def _end(self, problem: Exception) -> None:
        self._failed = True
        self.problem = problem
        for query in self._readers:
            end_with_error(query)

    def _queries(self) -> Iterator[tuple[StreamingQuery, int | None]]:
        """The queries that read the plans; the batch each has finished."""
        url = self.planner.files.url
        for query in self._spark.streams.active:
            if source_number(query, url) is None:
                continue
            progress = query.lastProgress
            sources = [] if progress is None else progress["sources"]
            batches = [
                _batch(source["endOffset"]) for source in sources if source["description"] == f"FileStreamSource[{url}]"
            ]
            for batch in batches or [None]:
                yield query, batch


def _batch(offset: object) -> int | None:
    """The file source counts its batches. Its offset is a dict on Spark 3.5, and the text of one later."""
    match = re.search(r"logOffset\D+(\d+)", str(offset))
    return None if match is None else int(match[1])

"""What pyspark has no call for, asked of the JVM's object of a streaming query. The same on Spark 3.5 and 4.

Where a platform has another object, the public calls have to do: a query is known by its first progress.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JNetworkError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

INTERRUPTS = 10
INTERRUPT_WAIT_S = 1.0

_FILE_SOURCE = "FileSource["
_log = logging.getLogger(__name__)


def source_number(query: StreamingQuery, url: str) -> int | None:
    """The number of the source that reads the files at `url`, among the query's sources of files. None: none does."""
    execution = _execution(query)
    if execution is None:
        progress = query.lastProgress
        named = f"FileStreamSource[{url}]"
        return 0 if progress is not None and any(one["description"] == named for one in progress["sources"]) else None
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

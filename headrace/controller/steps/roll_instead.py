"""Lets a commit roll that cannot merge into the active segments, because a client has sealed one of them."""

from __future__ import annotations

import logging
from dataclasses import replace

from headrace.controller.engine import Tools
from headrace.metadata.commit_run import replace_run
from headrace.metadata.stream_records import StoredStream
from headrace.metadata.transition import replace_transition
from headrace.model.commit_runs import CommitRun
from headrace.model.errors import ConflictError
from headrace.model.requests import RequestKind
from headrace.model.rolling_transactions import roll_of, scale_after_roll
from headrace.ports.metadata_store import Write

_log = logging.getLogger(__name__)


def roll_instead(tools: Tools, stored: StoredStream, run: CommitRun) -> tuple[StoredStream, CommitRun]:
    """Let a run roll that did not. What it has merged so far stays in the segments that the roll replaces.

    Raises WriteConflictError if another process has made progress with the run. A scale that waits for the run was
    planned for the active epoch, so it is planned for the one that follows the roll. Other operations that wait are
    planned when they begin, or name a position of the stream, which stays.
    """
    stream, rolling = stored.stream, replace(run, rolls=True)
    writes: list[Write] = [replace_run(stream.scope, stream.name, rolling)]
    if stream.following is not None and stream.following.kind is RequestKind.SCALE_STREAM:
        planned = tools.records.transition(stream)
        if planned is None:
            raise ConflictError(f"a scale of {stream.scoped_name} has just ended: reading again")
        roll = roll_of(stream.epoch, tools.history.epoch(stream, run.reference_epoch), run.started_ms)
        writes.append(replace_transition(stream, scale_after_roll(planned, roll)))
    stored = tools.records.replace(stored, stream, *writes)
    _log.warning("a client has sealed an active segment of %s: the commit replaces them", stream.scoped_name)
    return stored, rolling

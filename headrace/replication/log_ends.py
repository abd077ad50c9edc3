"""Where the log ends, by the answers of the replicas that a recovery fenced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from headrace.codec.replica_messages import HeldRun, Opened
from headrace.model.container_logs import ContainerLog, LedgerChain, ReplicaId

# The position of a replica, computed from what it reported in OPENED.


def reported_position(chain: LedgerChain, truncated_before: int, runs: Iterable[HeldRun]) -> int:
    """The last entry up to which a replica holds everything from the truncation point on, clipped to the chain."""
    held = {run.epoch: run for run in runs}
    expected = truncated_before
    for start in chain.ledgers:
        run = held.get(start.epoch)
        bounds = chain.bounds(start.epoch)
        assert bounds is not None
        if run is not None and run.start <= expected:
            expected = max(expected, run.end if bounds[1] is None else min(run.end, bounds[1]))
        if bounds[1] is None or expected < bounds[1]:
            break
    return expected - 1


def had_position(chain: LedgerChain, truncated_before: int, runs: Iterable[HeldRun]) -> int:
    """The last entry that a replica once had, also if it is damaged now."""
    had = truncated_before
    for run in runs:
        bounds = chain.bounds(run.epoch)
        if bounds is not None:
            had = max(had, run.had_end if bounds[1] is None else min(run.had_end, bounds[1]))
    return had - 1


class LogEnd(NamedTuple):
    """The last entry; the last one that is known to be acknowledged; the truncation point."""

    last: int
    acknowledged_entry: int
    truncated_before: int


def find_log_end(
    log: ContainerLog | None,
    truncated_before: int,
    answers: Mapping[ReplicaId, Opened],
    longest: Callable[[Mapping[ReplicaId, int]], int],
    past_before: int,
) -> LogEnd:
    """The end by the longest position of the members, and by any replica if an operator accepted the loss of members.

    The replicas that are left may know entries as acknowledged that only the lost ones had. These witnesses do not
    count then. Closed ledgers still do: each member held them.

    Without a record no owner has sent an entry to a replica. So entries of ledgers from epoch `past_before` on are
    of a log whose record has vanished, and count as acknowledged.
    """
    truncated_before = truncation_point(log, truncated_before, answers)
    if log is None:
        last_entries = [
            run.had_end - 1 for answer in answers.values() for run in answer.runs if run.epoch >= past_before
        ]
        return LogEnd(truncated_before - 1, max([truncated_before - 1, *last_entries]), truncated_before)
    if not log.ledgers:
        return LogEnd(truncated_before - 1, truncated_before - 1, truncated_before)
    asked = {replica: answer for replica, answer in answers.items() if replica in log.members or log.has_accepted_loss}
    had = {replica: had_position(log.chain, truncated_before, answer.runs) for replica, answer in asked.items()}
    closed = max(log.ledgers[-1].first, truncated_before) - 1
    witnesses = [] if log.has_accepted_loss else [answer.acknowledged_before - 1 for answer in asked.values()]
    return LogEnd(max(closed, longest(had)), max([closed, *witnesses]), truncated_before)


def truncation_point(log: ContainerLog | None, truncated_before: int, answers: Mapping[ReplicaId, Opened]) -> int:
    """The highest truncation point that is of this log, as far as is known.

    A replica that was away while an operator accepted a loss may be truncated at an entry that was lost. The log may
    have reached that number since, with other entries. A member's point is of this log. That of another replica is, if
    the replica has entries of this log behind it. If it has none, nothing depends on its point.
    """
    if log is not None and not log.ledgers:
        return truncated_before  # the record says it
    known = [
        answer.truncated_before
        for replica, answer in answers.items()
        if log is None or replica in log.members or had_position(log.chain, 0, answer.runs) >= answer.truncated_before
    ]
    return max([truncated_before, *known])


def first_possible(log: ContainerLog | None) -> int:
    """The lowest truncation point that the log can have, by its record alone."""
    if log is None:
        return 0
    return log.truncated_before if log.next_entry is None else log.next_entry

"""Where the log ends, by the answers of the replicas that a recovery fenced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from headrace.codec.replica_messages import Opened
from headrace.model.container_logs import ContainerLog
from headrace.model.ensembles import ReplicaId
from headrace.replication.replica_positions import had_position


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
        found = [run.had_end - 1 for answer in answers.values() for run in answer.runs if run.epoch >= past_before]
        return LogEnd(truncated_before - 1, max([truncated_before - 1, *found]), truncated_before)
    if not log.ledgers:
        return LogEnd(truncated_before - 1, truncated_before - 1, truncated_before)
    asked = {one: answer for one, answer in answers.items() if one in log.members or log.has_accepted_loss}
    had = {one: had_position(log.chain, truncated_before, answer.runs) for one, answer in asked.items()}
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
        for one, answer in answers.items()
        if log is None or one in log.members or had_position(log.chain, 0, answer.runs) >= answer.truncated_before
    ]
    return max([truncated_before, *known])


def first_possible(log: ContainerLog | None) -> int:
    """The lowest truncation point that the log can have, by its record alone."""
    if log is None:
        return 0
    return log.truncated_before if log.next_entry is None else log.next_entry

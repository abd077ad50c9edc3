"""The position of a replica, computed from what it reported in OPENED."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.codec.replica_messages import HeldRun
from headrace.model.container_logs import LedgerChain


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

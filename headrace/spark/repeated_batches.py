"""Whether a batch was committed by an earlier run of its query; tasks ask with as few requests as possible.

Only the first batch of a run can be a repetition, because a run commits each batch before it begins the next. So a
Python worker asks the controller for the first batch that it sees of a run, and needs no request for the later ones.
The answer only saves work: the commit itself recognises a repetition in any case.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Final

from headrace.model.errors import IllegalStateError

RUNS_KEPT_MAX: Final = 100


class RepeatedBatches:
    """Remembers, for each run of a query, the first batch that this process saw. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[Hashable, tuple[int, bool]] = {}

    def is_repeated(self, run: Hashable | None, epoch: int, committed_epoch: Callable[[], int | None]) -> bool:
        """See `is_repetition`; `run` names a run of a query and its sink, None if it is not known."""
        with self._lock:
            first = None if run is None else self._first.get(run)
        if first is not None and epoch >= first[0]:
            return first[1] if epoch == first[0] else False
        repeated = is_repetition(epoch, committed_epoch())
        if run is not None:
            with self._lock:
                self._first[run] = (epoch, repeated)
                while len(self._first) > RUNS_KEPT_MAX:
                    del self._first[next(iter(self._first))]
        return repeated


def is_repetition(epoch: int, committed_epoch: int | None) -> bool:
    """Whether a query runs the batch again that it committed last.

    Raises:
        IllegalStateError: code "later_batch_committed": it runs an older one, which only an old checkpoint can be the
            reason for. To skip the batch could lose events, since it may now end at another place in its sources.
    """
    if committed_epoch is not None and epoch < committed_epoch:
        raise IllegalStateError(
            f"this query has already committed batch {committed_epoch}, and now runs batch {epoch}: its checkpoint is"
            " a copy, or an older state. Continue with the newest checkpoint, or start with a new one, which writes"
            " again what it reads again",
            details={"batch": epoch, "committed": committed_epoch},
            code="later_batch_committed",
        )
    return epoch == committed_epoch

"""The progress of a container's opening, and the pause before a failed step is retried.

Every step can be repeated. All attempts keep the first claim, so that a retry does not increase the epoch.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.model.backoff import doubled_pause
from headrace.model.errors import CorruptError, HeadraceError

RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 30.0
"""If an opening fails for this long, the cause is an outage. More frequent attempts would add load to it."""

QUARANTINE_RETRY_S: Final = 60.0
"""A damaged object needs an operator. The store retries, so that it needs no restart once the object is restored."""


class OpeningStep(enum.StrEnum):
    """The steps of an opening, in their order."""

    CLAIM = "claim"
    LEDGER = "ledger"
    """Open the container's log and replay it."""
    RESTORE = "restore"
    """Restore the state from tier 2 if the log contained no state."""
    CHECKPOINT = "checkpoint"
    """Write the state that came from tier 2 into the log, before any other operation."""
    CONFIRM = "confirm"
    """Check that the claim is still valid."""


_AFTER: Final = {
    OpeningStep.CLAIM: OpeningStep.LEDGER,
    OpeningStep.LEDGER: OpeningStep.RESTORE,
    OpeningStep.RESTORE: OpeningStep.CHECKPOINT,
    OpeningStep.CHECKPOINT: OpeningStep.CONFIRM,
}
_RETRIED_FROM: Final = {OpeningStep.CHECKPOINT: OpeningStep.LEDGER}
"""After a failed checkpoint the log may contain a part of it, so the log is read again. Other steps are idempotent."""


@dataclass(frozen=True, slots=True)
class OpeningProgress:
    """The state of an opening between two attempts.

    `failures` counts by step, since the container was last served. `retry_s` is the pause before `step`, in seconds.
    """

    step: OpeningStep = OpeningStep.CLAIM
    failures: Mapping[OpeningStep, int] = field(default_factory=dict)
    retry_s: float = 0.0
    quarantined: bool = False
    """The container's log or its data in tier 2 is damaged. The container is not served until that is repaired."""
    error: str = ""

    def done(self) -> OpeningProgress:
        """The progress after the step has succeeded; not for the last step."""
        return replace(self, step=_AFTER[self.step], retry_s=0.0)

    def failed(self, error: Exception) -> OpeningProgress:
        """The progress after the step has failed with `error`."""
        failures = self.failures.get(self.step, 0) + 1
        quarantined = isinstance(error, CorruptError)
        return OpeningProgress(
            _RETRIED_FROM.get(self.step, self.step),
            {**self.failures, self.step: failures},
            QUARANTINE_RETRY_S if quarantined else doubled_pause(failures, RETRY_FIRST_S, RETRY_MAX_S),
            quarantined,
            error.message if isinstance(error, HeadraceError) else repr(error),
        )

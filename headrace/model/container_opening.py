"""How far the opening of a container has come, and when a step that failed is tried again.

Every step can be repeated. A claim is kept over all attempts, so that trying again does not bump the epoch.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.model.back_off import doubled_pause_s
from headrace.model.errors import CorruptError, HeadraceError

RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 30.0
"""What keeps an opening from succeeding for long is an outage: trying more often would only add to it."""

QUARANTINE_RETRY_S: Final = 60.0
"""Damage does not heal by itself; an operator who brings an object back needs no restart of the store."""


class OpeningStep(enum.StrEnum):
    """What is done next."""

    CLAIM = "claim"
    LEDGER = "ledger"
    """Open the container's log and replay it."""
    RESTORE = "restore"
    """Take from tier 2 what a log that told nothing does not have."""
    CHECKPOINT = "checkpoint"
    """Have the log tell what came from tier 2, before it tells anything else."""
    CONFIRM = "confirm"
    """Look whether the claim still holds."""


_AFTER: Final = {
    OpeningStep.CLAIM: OpeningStep.LEDGER,
    OpeningStep.LEDGER: OpeningStep.RESTORE,
    OpeningStep.RESTORE: OpeningStep.CHECKPOINT,
    OpeningStep.CHECKPOINT: OpeningStep.CONFIRM,
}
_RETRIED_FROM: Final = {OpeningStep.CHECKPOINT: OpeningStep.LEDGER}
"""A log that has a part of a checkpoint is read again; every other step leaves nothing that its repetition minds."""


@dataclass(frozen=True, slots=True)
class OpeningProgress:
    """`failures` counts by step, since the container was last served. `retry_s` is the pause before `step`."""

    step: OpeningStep = OpeningStep.CLAIM
    failures: Mapping[OpeningStep, int] = field(default_factory=dict)
    retry_s: float = 0.0
    quarantined: bool = False
    """Its log or tier 2 is damaged: it is not served until that is repaired."""
    error: str = ""

    def done(self) -> OpeningProgress:
        """After the step has succeeded; the last one has none after it."""
        return replace(self, step=_AFTER[self.step], retry_s=0.0)

    def failed(self, error: Exception) -> OpeningProgress:
        """After the step has failed."""
        failures = self.failures.get(self.step, 0) + 1
        quarantined = isinstance(error, CorruptError)
        return OpeningProgress(
            _RETRIED_FROM.get(self.step, self.step),
            {**self.failures, self.step: failures},
            QUARANTINE_RETRY_S if quarantined else doubled_pause_s(failures, RETRY_FIRST_S, RETRY_MAX_S),
            quarantined,
            error.message if isinstance(error, HeadraceError) else repr(error),
        )

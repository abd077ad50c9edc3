"""The steps of a takeover, in their order."""

from __future__ import annotations

from enum import Enum


class RecoveryStep(Enum):
    CLAIM = "claim"
    READ = "read"
    FENCE = "fence"
    COPY = "copy"
    OPEN = "open"
    SERVE = "serve"
    FAILED = "failed"

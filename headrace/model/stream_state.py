"""The states of a stream."""

from __future__ import annotations

from enum import StrEnum


class StreamState(StrEnum):
    """The state of a stream. The API and the stored records contain these values."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    UPDATING = "UPDATING"
    SCALING = "SCALING"
    COMMITTING_TXN = "COMMITTING_TXN"
    TRUNCATING = "TRUNCATING"
    SEALING = "SEALING"
    SEALED = "SEALED"

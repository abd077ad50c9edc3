"""Bounds and times of the replicated log. The simulator uses smaller ones, so that it reaches them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNACKNOWLEDGED_BYTES_MAX: Final = 64 << 20
"""Appended and not acknowledged, all logs of a process together. Connections that append slow down before it."""

LINK_UNSENT_BYTES_MAX: Final = 8 << 20
"""Waiting in a link. Beyond that the member catches up from the journal, so that a slow peer pins no memory."""

LINK_WINDOW_BYTES: Final = 32 << 20
"""Sent to a member and not acknowledged by it."""

RECEIVED_BYTES_MAX: Final = 64 << 20
"""Received and not synced, per process that holds copies. Then its links are not read."""

CATCH_UP_WINDOW_BYTES: Final = 4 << 20
"""Read from the journal for one member at a time."""

CATCH_UPS_MAX: Final = 2
"""Members that catch up at the same time, per process. As many more get the end of a log in a takeover."""

CATCH_UP_BYTES_PER_S: Final = 64 << 20
"""All catch-ups of a process together, so that they leave bandwidth for appends; more if more is appended."""

RETAINED_BYTES_MAX: Final = 1 << 30
"""Retained log of one container."""

LAG_BYTES_MAX: Final = 64 << 20
"""A member that lacks more, although the others have it, is removed from the ensemble."""

JOIN_LAG_BYTES: Final = 1 << 20
"""A learner that lacks no more than this joins the ensemble. A member that has not acknowledged more than this of what
it was sent gets its next window."""

SIZE_MARK_BYTES: Final = 64 << 10
"""Beyond this resolution the owner does not account for where bytes are in the log."""

INDEX_BYTES_MAX: Final = 64 << 20
"""The index of retained entries, 16 bytes each. Beyond it there is one mark for each SIZE_MARK_BYTES."""

REOPEN_FIRST_MS: Final = 50
REOPEN_MAX_MS: Final = 1_000
"""An OPEN is repeated after 50 ms, then after twice the time, up to a second."""

STALL_MS: Final = 1_500
"""A member that acknowledges nothing of what was sent is opened again: messages may have been lost."""

SILENCE_MS: Final = 10_000
"""A silent member is removed from the ensemble. A process that restarts is back sooner, without a write."""

PULSE_MS: Final = 500
"""When nothing is appended, members learn the last acknowledged entry and the truncation point this often."""

RECORD_RETRY_MS: Final = 200
"""A write of the log record with an unknown outcome is repeated under the same version after this time."""

CHANGE_PATIENCE_MS: Final = 5_000
"""A change of the ensemble whose new members do not reach a quorum in this time is withdrawn."""

FENCE_GRACE_MS: Final = 200
"""After a read quorum a recovery waits this long for other members, so that it has less to copy."""

RECOVERY_RETRY_MS: Final = 1_000
"""A recovery repeats this often what was not answered."""

RECOVERY_STALL_MS: Final = 3_000
"""A recovery that copies nothing for this long is blocked, and asks all replicas again: its source may have ended."""


@dataclass(frozen=True, slots=True)
class WriterBounds:
    """The bounds of one LedgerWriter."""

    unacknowledged_bytes: int = UNACKNOWLEDGED_BYTES_MAX
    link_window_bytes: int = LINK_WINDOW_BYTES
    catch_up_window_bytes: int = CATCH_UP_WINDOW_BYTES
    lag_bytes: int = LAG_BYTES_MAX
    join_lag_bytes: int = JOIN_LAG_BYTES
    size_mark_bytes: int = SIZE_MARK_BYTES
    stall_ms: int = STALL_MS
    silence_ms: int = SILENCE_MS
    pulse_ms: int = PULSE_MS
    record_retry_ms: int = RECORD_RETRY_MS
    change_patience_ms: int = CHANGE_PATIENCE_MS


@dataclass(frozen=True, slots=True)
class RecoveryBounds:
    """The times of one LogRecovery."""

    fence_grace_ms: int = FENCE_GRACE_MS
    retry_ms: int = RECOVERY_RETRY_MS
    stall_ms: int = RECOVERY_STALL_MS
    copy_window_bytes: int = CATCH_UP_WINDOW_BYTES

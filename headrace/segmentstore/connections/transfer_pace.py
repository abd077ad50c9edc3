"""The check that a peer sends the rest of a command fast enough."""

from __future__ import annotations

from headrace.segmentstore.connections.limits import STALL_S, TRANSFER_BYTES_PER_S_MIN


class TransferPace:
    """The time that a peer has left for a command, in seconds of a monotonic clock.

    A peer starts each command with `STALL_S`. Its time decreases while bytes are missing. Bytes that arrive add to it,
    at the minimum rate, up to `STALL_S`. So a peer that sends single bytes fails the check as one that stops. Time
    during which the store receives nothing does not count.
    """

    __slots__ = ("_command", "_left_s", "_paused", "_since_s")

    def __init__(self) -> None:
        self._command: int | None = None
        self._left_s = STALL_S
        self._since_s = 0.0
        self._paused = False

    def received(self, now_s: float, command: int | None, count: int) -> None:
        """Note `count` bytes. `command` is the number of the incomplete command; None if there is none."""
        if command != self._command:
            self._command = command
            self._left_s = STALL_S
        elif command is not None:
            passed_s = 0.0 if self._paused else now_s - self._since_s
            self._left_s = min(self._left_s - passed_s + count / TRANSFER_BYTES_PER_S_MIN, STALL_S)
        self._since_s = now_s

    def pause(self, now_s: float) -> None:
        """Stop the clock, because the store receives nothing from now on."""
        if not self._paused:
            self._left_s -= now_s - self._since_s
            self._paused = True

    def resume(self, now_s: float) -> None:
        self._paused = False
        self._since_s = now_s

    def is_too_slow(self, now_s: float) -> bool:
        if self._command is None or self._paused:
            return False
        return now_s - self._since_s > self._left_s

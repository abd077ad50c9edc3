"""Whether a peer that owes the rest of a command sends it fast enough."""

from __future__ import annotations

from headrace.segmentstore.connections.limits import STALL_S, TRANSFER_BYTES_PER_S_MIN


class TransferPace:
    """The time that a peer has left, in seconds of any clock that never goes back.

    A peer begins each command with `STALL_S`. While it owes bytes its time runs down; bytes that arrive add to it, at
    the minimum rate, but never beyond `STALL_S`. So a peer that stops is as much too slow as one that sends a byte now
    and then. Time in which the store does not receive does not count.
    """

    __slots__ = ("_command", "_left_s", "_paused", "_since_s")

    def __init__(self) -> None:
        self._command: int | None = None
        self._left_s = STALL_S
        self._since_s = 0.0
        self._paused = False

    def received(self, now_s: float, command: int | None, count: int) -> None:
        """`count` bytes arrived; `command` tells the one that the peer owes the rest of from all others, None: none."""
        if command != self._command:
            self._command = command
            self._left_s = STALL_S
        elif command is not None:
            passed_s = 0.0 if self._paused else now_s - self._since_s
            self._left_s = min(self._left_s - passed_s + count / TRANSFER_BYTES_PER_S_MIN, STALL_S)
        self._since_s = now_s

    def pause(self, now_s: float) -> None:
        """The store receives nothing from now on."""
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

"""The share of one connection in a turn of the event loop. A peer can send thousands of commands in one packet."""

from __future__ import annotations

from headrace.ports.clock import Clock
from headrace.segmentstore.connections.limits import COMMANDS_PER_TURN_MAX, TURN_S

_COMMANDS_PER_LOOK_AT_THE_CLOCK = 16


class TurnBudget:
    """Counts the commands of a connection in this turn, and the time that they take.

    `is_spent`: no other command may start before `renew`.
    """

    __slots__ = ("_clock", "_commands", "_earlier_s", "_started_s", "is_spent")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._commands = 0
        self._started_s = self._earlier_s = 0.0
        self.is_spent = False

    def start(self, now_s: float) -> None:
        """Note that commands are handled from now on. A turn may have several such steps."""
        self._started_s = now_s

    def stop(self) -> None:
        """Note the end of a step."""
        self._earlier_s += self._clock.monotonic_s() - self._started_s

    def count_append(self) -> None:
        self._commands += 1
        if self._commands % _COMMANDS_PER_LOOK_AT_THE_CLOCK == 0:
            self._check()

    def count_command(self) -> None:
        """As `count_append`, for a command that may take longer than an append."""
        self._commands += 1
        self._check()

    def renew(self) -> None:
        """Begin another turn."""
        self._commands = 0
        self._earlier_s = 0.0
        self.is_spent = False

    def _check(self) -> None:
        passed_s = self._earlier_s + self._clock.monotonic_s() - self._started_s
        self.is_spent = self._commands >= COMMANDS_PER_TURN_MAX or passed_s >= TURN_S

"""How the stack stops its workers."""

from __future__ import annotations

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.local.stack import stop_together


class StuckWorker:
    """Never ends: each wait takes all of its time."""

    def __init__(self, clock: ManualClock, asked: list[StuckWorker]) -> None:
        self._clock = clock
        self._asked = asked
        self.waited_s = -1.0
        self.asked_before = 0

    def ask_to_stop(self) -> None:
        self._asked.append(self)

    def join(self, timeout_s: float) -> bool:
        self.waited_s, self.asked_before = timeout_s, len(self._asked)
        self._clock.advance(int(timeout_s * 1_000))
        return False


def test_workers_that_do_not_end_share_the_time():
    clock = ManualClock()
    asked: list[StuckWorker] = []
    workers = [StuckWorker(clock, asked) for _ in range(30)]
    stop_together(workers, 10.0, clock)
    assert [worker.waited_s for worker in workers] == [10.0] + [0.0] * 29
    assert {worker.asked_before for worker in workers} == {30}

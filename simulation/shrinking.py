"""Reduces the tape of a failing seed: removes halves, quarters, and so on down to single steps while it still fails."""

from __future__ import annotations

from collections.abc import Callable

from simulation.draws import Draws
from simulation.runs import run_seed
from simulation.swarm import draw_swarm
from simulation.tape import Step, draw_tape


def seed_tape(seed: int) -> list[Step]:
    """The whole tape of a seed."""
    draws = Draws(seed)
    return draw_tape(draws, draw_swarm(draws))


def shrink(seed: int, checker: str, progress: Callable[[int], None] = lambda steps: None) -> list[Step]:
    """The smallest tape found with which the same checker fires."""

    def still_fails(tape: list[Step]) -> bool:
        return any(violation.checker == checker for violation in run_seed(seed, tape).violations)

    tape = seed_tape(seed)
    size = max(1, len(tape) // 2)
    while True:
        shorter = _without_blocks(tape, size, still_fails)
        progress(len(shorter))
        if size == 1 and len(shorter) == len(tape):
            return shorter
        tape = shorter
        size = max(1, size // 2)


def _without_blocks(tape: list[Step], size: int, still_fails: Callable[[list[Step]], bool]) -> list[Step]:
    """The tape without each block of `size` steps that the failure does not need."""
    start = 0
    while start < len(tape):
        shorter = tape[:start] + tape[start + size :]
        if still_fails(shorter):
            tape = shorter
        else:
            start += size
    return tape


def as_test(seed: int, checker: str, tape: list[Step]) -> str:
    """The reduced run as a test for tests/simulation/regressions."""
    steps = "\n".join(f"    Step{tuple(step)!r}," for step in tape)
    return f'''"""Seed {seed} violated {checker}: say here which rule was wrong."""

from __future__ import annotations

from simulation.runs import run_seed
from simulation.tape import Step

TAPE = [
{steps}
]


def test_seed_{seed}_keeps_its_invariants():
    assert run_seed({seed}, TAPE).violations == ()
'''

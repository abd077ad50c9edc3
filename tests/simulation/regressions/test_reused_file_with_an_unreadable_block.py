"""A journal wrote a part of an unreadable block of a file that it used again. The simulated disk accepted this, and what
was acknowledged could not be read. A kernel fails such a write, since it cannot read the rest of the block."""

from __future__ import annotations

import pytest

from simulation.runs import run_seed


@pytest.mark.parametrize("seed", [3793, 10068])
def test_bytes_that_cannot_be_read_are_not_acknowledged(seed: int):
    assert run_seed(seed).violations == ()

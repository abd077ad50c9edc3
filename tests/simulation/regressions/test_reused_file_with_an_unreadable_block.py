"""A journal wrote a part of an unreadable block of a file that it used again, and acknowledged it: it cannot be read.

A kernel fails such a write, since it cannot read the rest of the block. Now the simulated disk does so, too.
"""

from __future__ import annotations

import pytest

from simulation.runs import run_seed


@pytest.mark.parametrize("seed", [3793, 10068])
def test_bytes_that_cannot_be_read_are_not_acknowledged(seed: int):
    assert run_seed(seed).violations == ()

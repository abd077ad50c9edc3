"""A recovery was blocked by a damaged entry, although it was there.

A member had it intact behind an earlier damaged one, or no ack quorum can have had it.
"""

from __future__ import annotations

import pytest

from simulation.runs import run_seed


@pytest.mark.parametrize("seed", [50, 371000058, 371010353])
def test_damage_blocks_only_what_is_lost(seed: int):
    assert run_seed(seed).violations == ()

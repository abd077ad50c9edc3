"""A store that had lost a container tried again. The NACK for its earlier attempt ended the new one.

The new attempt had not claimed yet, so that every promise was higher than its epoch.
"""

from __future__ import annotations

import pytest

from simulation.runs import run_seed


@pytest.mark.parametrize("seed", [393, 371000485, 371000744])
def test_takeover_survives_an_earlier_refusal(seed: int):
    assert run_seed(seed).violations == ()

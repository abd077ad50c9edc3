"""An owner that was paused for long answers, before its next heartbeat, what was true before: clients must not ask it.

The oracle was wrong: its clients asked the only store that served the segment, also if another one had claimed it.
"""

from __future__ import annotations

import pytest

from simulation.store_level.runs import run_store_seed


@pytest.mark.parametrize("seed", [547, 1515])
def test_clients_ask_the_owner_that_the_controller_names(seed: int) -> None:
    assert run_store_seed(seed).violations == ()

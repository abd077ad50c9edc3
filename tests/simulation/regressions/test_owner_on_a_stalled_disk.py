"""The disk of an owner stalled without an error, and its containers stayed with it for as long as the stall lasted.

It went on acknowledging until its memory was full, because an owner keeps each entry until its own journal has it.
Now it says so in its lease, and others take the containers over (`model/store_volume.py`). It gets copies still (49).
"""

from __future__ import annotations

import pytest

from simulation.store_level.runs import run_store_seed


@pytest.mark.parametrize("seed", [21, 23, 49])
def test_containers_leave_a_store_whose_disk_stalls(seed):
    assert run_store_seed(seed).violations == ()

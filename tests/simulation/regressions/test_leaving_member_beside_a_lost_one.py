"""All stores stopped while one was lost, and a log stayed behind on the volume of its owner.

The owner removed the member that was leaving, and kept the one that was lost. Without a second copy it could not write
the end of the log. Now a member that answers stays until enough others do (`repair_policy._is_relied_on`).
"""

from __future__ import annotations

import pytest

from simulation.store_level.runs import run_store_seed


@pytest.mark.parametrize("seed", [369, 801])
def test_log_is_emptied_when_all_stores_stop(seed):
    assert run_store_seed(seed).violations == ()

"""kill -9 of a real store under everything that it can be asked at once; what was acknowledged is there, once."""

from __future__ import annotations

import pytest

from fuzz.kill_nine import torture


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_everything_acknowledged_is_there_once(seed):
    assert torture(seed, kills=2) > 0

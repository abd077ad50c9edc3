"""A few seconds of the soak: memory and log stay bounded under saturated load, and every byte is read back."""

from __future__ import annotations

import pytest

from fuzz.soak import BEHIND_BYTES_MAX, soak


@pytest.mark.parametrize(("seconds", "behind_bytes_max"), [(4, BEHIND_BYTES_MAX), (2, 1 << 20)])
def test_saturated_load_stays_within_its_bounds(seconds: float, behind_bytes_max: int):
    """With a small distance the writers wait for their readers most of the time."""
    assert "MB/s" in soak(1, seconds=seconds, behind_bytes_max=behind_bytes_max)

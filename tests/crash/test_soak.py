"""A few seconds of the soak: memory and log stay bounded under saturated load, and every byte is read back."""

from __future__ import annotations

from fuzz.soak import soak


def test_saturated_load_stays_within_its_bounds():
    assert "MB/s" in soak(1, seconds=4)

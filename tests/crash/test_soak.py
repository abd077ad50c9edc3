"""A few seconds of the soak: memory and log stay bounded under saturated load, and every byte is read back."""

from __future__ import annotations

import re

from fuzz.soak import soak


def test_saturated_load_stays_within_its_bounds():
    assert "MB/s" in soak(1, seconds=4)


def test_writers_wait_for_readers_who_are_behind():
    told = re.search(r"writers waited (\d+) times", soak(1, seconds=2, behind_bytes_max=0))
    assert told is not None
    assert int(told[1]) > 0

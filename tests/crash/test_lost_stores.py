"""Three real stores with three copies under load: one is killed, one stops, a disk hangs, a link is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz import lost_stores

FAULTS = ("kill_one", "pause_one", "stall_disk", "cut_one_way")


@pytest.mark.xdist_group("foreign_client")  # these start many processes, too: one after the other
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # of connections to stores that were killed
def test_stores_with_three_copies_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lost_stores, "PAUSE_S", 2.0)
    told = lost_stores.torture(5, faults=FAULTS, evidence=tmp_path)
    assert [fault for fault in FAULTS if f"{fault}: up to" not in told] == []

"""Segment store processes with three copies, before they are started."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.replicated_stores import StoreGroup
from headrace.local.resources import Resources


def test_stores_may_be_below_a_relative_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    resources = Resources("http://127.0.0.1:1", "table", "bucket", {})
    group = StoreGroup(Path("stores"), resources, {"HEADRACE_CONTAINER_COUNT": "1"}, None)
    Path("stores").mkdir()
    store = group.add("a")
    assert store.directory == tmp_path / "stores" / store.store_id / "data"


def test_disks_of_another_release_are_not_stalled(tmp_path: Path):
    """A fault that does nothing would be waited for in vain."""
    resources = Resources("http://127.0.0.1:1", "table", "bucket", {})
    group = StoreGroup(tmp_path, resources, {"HEADRACE_CONTAINER_COUNT": "1"}, None, other=tmp_path / "code")
    ours, other = group.add("a"), group.add("b")
    ours.stall_disk()
    ours.end_stall()
    with pytest.raises(ValueError, match="runs another release"):
        other.stall_disk()

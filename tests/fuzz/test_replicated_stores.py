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

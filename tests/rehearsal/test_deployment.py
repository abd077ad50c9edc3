"""The phases of a rehearsal that are decided without an emulator."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from infra.settings import Settings
from rehearsal.deployment import SETTINGS, SOURCES, UPDATES, sources_digest

ROOT = Path(__file__).resolve().parents[2]


def test_the_settings_of_all_deployments_exist():
    known = {field.name for field in fields(Settings)}
    assert set(SETTINGS) <= known
    for update in UPDATES:
        assert set(update.settings) <= known, update.name


def test_names_of_updates_are_different():
    assert len({each.name for each in UPDATES} | {"first"}) == len(UPDATES) + 1


def test_all_sources_of_the_app_exist():
    assert [name for name in SOURCES if not (ROOT / name).exists()] == []


def test_an_assembly_is_made_again_for_other_sources(tmp_path: Path):
    (tmp_path / "infra").mkdir()
    for name in SOURCES:
        if "." in name:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("before")
    (tmp_path / "infra" / "stack.py").write_text("before")
    before = sources_digest(["tls=off"], tmp_path)
    assert sources_digest(["tls=off"], tmp_path) == before
    assert sources_digest(["tls=required"], tmp_path) != before
    (tmp_path / "infra" / "stack.py").write_text("after")
    assert sources_digest(["tls=off"], tmp_path) != before

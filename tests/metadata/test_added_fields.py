"""The fields of records since release 0.2: each may be lost when 0.2 writes the record again, or is gated.

A release drops the fields that it does not know when it replaces a record. `fields_of_0_2.json` has the fields of the
golden records of 0.2.0, those of nested objects with their paths.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from golden_records import GoldenRecords

from headrace.model.formats import COMMIT_NOTES, FORMATS

TESTS = Path(__file__).resolve().parents[1]

MAY_BE_LOST: dict[str, dict[str, str]] = {
    "dead letter": {"requested_by": "for people only"},
    "intent": {"requested_by": "for people only"},
    "store lease": {
        "tls_name": "the store writes its lease again within seconds",
        "external": "the store writes its lease again within seconds",
        "external.name": "the store writes its lease again within seconds",
        "external.port": "the store writes its lease again within seconds",
        "release": "the store writes its lease again within seconds; finalizing is refused meanwhile",
        "starts": "the store writes its lease again within seconds; the doctor may notice restarts later",
        "unflushed_since": "the store writes its lease again within seconds",
    },
}
GATED: dict[str, dict[str, str]] = {"commit writer": {"note": COMMIT_NOTES, "pending.note": COMMIT_NOTES}}
NEW_KINDS = {"external port", "trust", "unfinished restore"}
"""Release 0.2 does not read them, so it does not write them either."""


def paths(value: object, inside: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, field in value.items():
            yield f"{inside}{name}"
            yield from paths(field, f"{inside}{name}.")


def golden_fields() -> dict[str, set[str]]:
    """The fields of all golden records, by the kind of record."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if path != Path(__file__) and "(GoldenRecords)" in path.read_text():
            for kind, (_, _, _, body) in shapes_of(path):
                found.setdefault(kind, set()).update(paths(body))
    return found


def shapes_of(path: Path) -> Iterator[tuple[str, Any]]:
    spec = importlib.util.spec_from_file_location(f"golden_fields_of_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the module look themselves up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, GoldenRecords) and value is not GoldenRecords:
            yield from value.shapes.items()


def test_each_field_since_0_2_may_be_lost_or_is_gated():
    former = json.loads((TESTS / "metadata" / "fields_of_0_2.json").read_text())
    today = golden_fields()
    assert today.keys() - former.keys() == NEW_KINDS
    added = {kind: fields - set(former[kind]) for kind, fields in today.items() if kind in former}
    assert {kind: fields for kind, fields in added.items() if fields} == {
        kind: {*MAY_BE_LOST.get(kind, {}), *GATED.get(kind, {})} for kind in MAY_BE_LOST.keys() | GATED.keys()
    }
    gates = {each.name for each in FORMATS if each.is_gated}
    assert {gate for fields in GATED.values() for gate in fields.values()} <= gates


def test_no_field_of_0_2_is_missing():
    """Release 0.2 demands the fields that it has always written."""
    former = json.loads((TESTS / "metadata" / "fields_of_0_2.json").read_text())
    today = golden_fields()
    assert {kind: set(fields) - today[kind] for kind, fields in former.items() if set(fields) - today[kind]} == {}

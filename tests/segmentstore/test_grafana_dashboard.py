"""The dashboard of Grafana is generated, and asks for metrics that `/metrics` has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from declared_metrics import PROMETHEUS

from headrace.segmentstore.metrics import LATENCY_BOUNDS_S

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "operating" / "grafana.json"
NAME = re.compile(r"\b(?:headrace|process)_\w+")
LABEL = re.compile(r"(?:by \(|\{\{)([\w, ]+)")
OF_PROMETHEUS = {"instance", "le"}
SUFFIXES = ("_bucket", "_count", "_sum")


def _panels() -> list[dict[str, Any]]:
    return list(json.loads(FILE.read_text())["panels"])


def _targets() -> list[dict[str, str]]:
    return [target for panel in _panels() for target in panel.get("targets", [])]


def test_the_file_is_what_the_script_writes():
    command = [sys.executable, str(ROOT / "scripts" / "generate_grafana_dashboard.py"), "--check"]
    finished = subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr


def test_each_metric_is_on_the_page():
    names = {name for target in _targets() for name in NAME.findall(target["expr"])}
    assert len(names) > 20
    for name in names:
        base = next((name.removesuffix(each) for each in SUFFIXES if name.endswith(each)), name)
        assert name in PROMETHEUS or base in PROMETHEUS, name


def test_each_label_is_one_of_its_metric():
    page = (ROOT / "docs" / "operating" / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(headrace_\w+)` \| \w+ \| ([\w, ]*?) ?\|", page, re.MULTILINE))
    for target in _targets():
        known = {label for name in NAME.findall(target["expr"]) for label in rows.get(name, "").split(", ")}
        for labels in LABEL.findall(target["expr"] + target["legendFormat"]):
            assert set(labels.split(", ")) <= known | OF_PROMETHEUS, target


def test_the_objective_is_a_bound_of_the_histogram():
    bounds = {bound for target in _targets() for bound in re.findall(r'le="([^"]+)"', target["expr"])}
    assert bounds == {repr(0.05)}
    assert 0.05 in LATENCY_BOUNDS_S


def test_panels_do_not_cover_each_other():
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in _panels()]
    assert len(ids) == len(set(ids))
    for panel in _panels():
        place = panel["gridPos"]
        cells = {(place["x"] + column, place["y"] + line) for column in range(place["w"]) for line in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells

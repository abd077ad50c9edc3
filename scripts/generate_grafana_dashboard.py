"""Generates docs/operating/grafana.json, a dashboard of Grafana for those who scrape `/metrics` of the stores.

`python scripts/generate_grafana_dashboard.py` writes the file; `--check` only tells whether it is current.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from infra.constructs.store_panels import ROWS, STORE_PANELS, StorePanel

FILE = Path(__file__).resolve().parents[1] / "docs" / "operating" / "grafana.json"
GRID_WIDTH, PANEL_WIDTH, PANEL_HEIGHT = 24, 8, 8
SCHEMA_VERSION = 39
"""Of Grafana 10.4. Later releases migrate it when they import it."""
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The model of the dashboard, whose data source is chosen at the import."""
    variable = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "headrace",
        "title": "Headrace: segment stores",
        "tags": ["headrace"],
        "schemaVersion": SCHEMA_VERSION,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [variable]},
        "panels": _panels(),
    }


def _panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        shown = [each for each in STORE_PANELS if each.row == row and each.queries]
        place = {"x": 0, "y": top, "w": GRID_WIDTH, "h": 1}
        made.append({"id": len(made) + 1, "type": "row", "title": row.capitalize(), "gridPos": place, "panels": []})
        top += 1
        for position, panel in enumerate(shown):
            column, line = position % (GRID_WIDTH // PANEL_WIDTH), position // (GRID_WIDTH // PANEL_WIDTH)
            place = {
                "x": column * PANEL_WIDTH,
                "y": top + line * PANEL_HEIGHT,
                "w": PANEL_WIDTH,
                "h": PANEL_HEIGHT,
            }
            made.append({"id": len(made) + 1, "gridPos": place, **_panel(panel)})
        top += -(-len(shown) * PANEL_WIDTH // GRID_WIDTH) * PANEL_HEIGHT
    return made


def _panel(panel: StorePanel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.line is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.line}]
        defaults |= {
            "thresholds": {"mode": "absolute", "steps": steps},
            "custom": {"thresholdsStyle": {"mode": "line"}},
        }
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": DATA_SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": DATA_SOURCE, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


def main() -> int:
    current = text()
    if "--check" in sys.argv[1:]:
        if FILE.read_text() != current:
            print(f"{FILE.name} is not current: make reference", file=sys.stderr)
            return 1
        return 0
    FILE.write_text(current)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Measures what calls, workflows, reports and ticks cost, in units of the bill: the tables of docs/operating/costs.md.

`make costs` writes the page's tables anew; a test fails when they are not what is measured.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cost_scenarios import SECTIONS
from cost_world import CostWorld
from log_costs import measured_log_events
from store_meter import Bill, StoreMeter
from stream_world import StreamWorld

from headrace.cli.bill import Load, zone_lines

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operating" / "costs.md"
MARKED = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
LOGS, ZONES = "logs", "zones"
"""The sections of the page that are not made of scenarios."""

COLUMNS = ("reads", "writes", "read units", "write units", "messages", "segment store")


class Meter(StoreMeter):
    """Reads the bill of everything that a world does from now on."""

    def __init__(self, world: StreamWorld) -> None:
        super().__init__(world.bare_store)
        for queue in (world.bare_queue, world.bare_commits, world.bare_aborts):
            self._watch(queue, "send", lambda _: self._count(messages=1))
        self._watch_segment_stores(world.bare_segment_stores)

    def _watch_segment_stores(self, stores: Any) -> None:
        for name in [name for name in dir(stores) if not name.startswith("_")]:
            inner = getattr(stores, name)
            if callable(inner):
                setattr(stores, name, self._store_call(inner))

    def _store_call(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Calls that an adapter makes of itself are part of the call that was made."""

        def call(first: Any = None, *arguments: Any) -> Any:
            before = self.bill.store
            answer = inner(first, *arguments)
            self.bill.store = before + (len(first) if isinstance(first, list | tuple) else 1)
            return answer

        return call


def tables() -> dict[str, str]:
    """Each section's table in Markdown, by the section's name."""
    found = {section: _table(section) for section in SECTIONS}
    bills = asyncio.run(measured_log_events())
    logs = "\n".join([_head(), *(_row(event, bill) for event, bill in bills.items())])
    return found | {LOGS: logs, ZONES: _zones()}


def page_with(text: str, found: dict[str, str]) -> str:
    """The page with these tables in their places."""
    return MARKED.sub(lambda match: f"{match[1]}\n{found[match[2]]}\n\n{match[3]}", text)


def _zones() -> str:
    """The lines of a bill on bytes between zones, by how much of what is read is history."""
    parts = (0.0, 0.5, 1.0)
    bills = [{line.text: line.dollars for line in zone_lines(Load(10, 3, 7, from_s3=part))} for part in parts]
    totals = [sum(bill.values()) for bill in bills]
    rows = [
        ("$ a month", [f"{part:.0%}" for part in parts]),
        ("---", ["--:"] * len(parts)),
        *((name, [f"{bill.get(name, 0):,.0f}" for bill in bills]) for name in bills[-1]),
        ("together", [f"{each:,.0f}" for each in totals]),
    ]
    return "\n".join(f"| {name} | {' | '.join(cells)} |" for name, cells in rows)


def _table(section: str) -> str:
    lines = [_head()]
    for scenario in SECTIONS[section]:
        world = CostWorld()
        act = scenario.prepare(world)
        meter = Meter(world)
        first = meter.measured(act)
        lines.append(_row(scenario.name, first))
        again = meter.measured(act) if scenario.is_question else first
        if again.cells != first.cells:
            lines.append(_row("… asked again", again))
    return "\n".join(lines)


def _head() -> str:
    return f"| | {' | '.join(COLUMNS)} |\n|---|{'--:|' * len(COLUMNS)}"


def _row(name: str, bill: Bill) -> str:
    return f"| {name} | {' | '.join(str(cell) if cell else '' for cell in bill.cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(), tables()))

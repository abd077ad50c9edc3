"""Measures what calls, workflows, reports and ticks cost, in units of the bill: the tables of docs/operating/costs.md.

`make costs` writes the page's tables anew; a test fails when they are not what is measured.

DynamoDB counts by the size of items: a strongly consistent read takes one unit for each 4 KB of an item (of all items
together in a query), a write one for each KB, in a transaction two. A check within a transaction counts as a write.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cost_scenarios import SECTIONS
from cost_world import CostWorld
from stream_world import StreamWorld

from headrace.ports.metadata_store import Key, Page, Record, Write

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operating" / "costs.md"
MARKED = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
READ_UNIT_BYTES, WRITE_UNIT_BYTES = 4096, 1024
FIXED_BYTES = len("partition") + len("sort") + len("version") + 2 + len("body") + len("write_id") + 16
"""Of an item: names of attributes, its version, the id of its write."""

COLUMNS = ("reads", "writes", "read units", "write units", "messages", "segment store")


@dataclass
class Bill:
    """Requests and units of one piece of work; `store` counts requests to segment stores, one for each segment."""

    reads: int = 0
    writes: int = 0
    read_units: int = 0
    write_units: int = 0
    messages: int = 0
    store: int = 0

    @property
    def cells(self) -> tuple[int, ...]:
        return self.reads, self.writes, self.read_units, self.write_units, self.messages, self.store


@dataclass
class Meter:
    """Reads the bill of everything that a world does from now on."""

    world: StreamWorld
    bill: Bill = field(default_factory=Bill)

    def __post_init__(self) -> None:
        store = self.world.bare_store
        self._get = store.get
        self._watch_store(store)
        for queue in (self.world.bare_queue, self.world.bare_commits, self.world.bare_aborts):
            self._watch(queue, "send", lambda _: self._count(messages=1))
        self._watch_segment_stores(self.world.bare_segment_stores)

    def measured(self, act: Callable[[], object]) -> Bill:
        self.bill = Bill()
        act()
        return self.bill

    def _count(self, **amounts: int) -> None:
        for name, amount in amounts.items():
            setattr(self.bill, name, getattr(self.bill, name) + amount)

    def _watch(self, target: Any, name: str, note: Callable[[Any], None]) -> None:
        inner = getattr(target, name)

        def call(*arguments: Any, **options: Any) -> Any:
            answer = inner(*arguments, **options)
            note(answer)
            return answer

        setattr(target, name, call)

    def _watch_store(self, store: Any) -> None:
        def read(found: Sequence[Record | None]) -> None:
            self._count(reads=1, read_units=sum(_units(_size(one), READ_UNIT_BYTES) for one in found))

        def query(page: Page) -> None:
            size = sum(_size(one) for one in page.records)
            self._count(reads=1, read_units=_units(size, READ_UNIT_BYTES))

        inner = store.write

        def write(*writes: Write) -> None:
            sizes = [max(_size(self._get(one.key)), _size_written(one)) for one in writes]
            factor = 2 if len(writes) > 1 else 1
            units = sum(_units(size, WRITE_UNIT_BYTES) for size in sizes)
            self._count(writes=1, write_units=factor * units)
            inner(*writes)

        self._watch(store, "get", lambda found: read([found]))
        self._watch(store, "get_many", read)
        self._watch(store, "query", query)
        store.write = write

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
    return {section: _table(section) for section in SECTIONS}


def page_with(text: str, found: dict[str, str]) -> str:
    """The page with these tables in their places."""
    return MARKED.sub(lambda match: f"{match[1]}\n{found[match[2]]}\n\n{match[3]}", text)


def _table(section: str) -> str:
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'--:|' * len(COLUMNS)}"]
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


def _row(name: str, bill: Bill) -> str:
    return f"| {name} | {' | '.join(str(cell) if cell else '' for cell in bill.cells)} |"


def _size(record: Record | None) -> int:
    return 0 if record is None else _item_size(record.key, record.body)


def _size_written(write: Write) -> int:
    body = getattr(write, "body", None)
    return 0 if body is None else _item_size(write.key, body)


def _item_size(key: Key, body: Any) -> int:
    text = json.dumps(dict(body), separators=(",", ":"))
    return FIXED_BYTES + len(key.partition.encode()) + len(key.sort.encode()) + len(text)


def _units(size_bytes: int, unit_bytes: int) -> int:
    return max(1, math.ceil(size_bytes / unit_bytes))


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(), tables()))

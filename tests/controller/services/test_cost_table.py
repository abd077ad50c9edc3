"""docs/operating/costs.md tells what calls, workflows, reports and ticks cost today."""

from __future__ import annotations

import pytest
from cost_scenarios import SECTIONS
from costs import LOGS, MARKED, PAGE, ZONES, Meter, page_with, tables
from stream_world import StreamWorld

from headrace.ports.metadata_store import Check, Create, Key
from headrace.ports.segment_stores import SegmentScaleRate


@pytest.fixture(scope="module")
def measured() -> dict[str, str]:
    return tables()


@pytest.mark.parametrize("section", [*SECTIONS, LOGS, ZONES])
def test_the_page_tells_what_is_measured(measured: dict[str, str], section: str):
    (found,) = [match[0] for match in MARKED.finditer(PAGE.read_text()) if match[2] == section]
    assert found == MARKED.search(page_with(found, measured))[0], "`make costs` writes the tables anew"  # type: ignore[index]


def test_every_table_has_its_place():
    assert [match[2] for match in MARKED.finditer(PAGE.read_text())] == [*SECTIONS, LOGS, ZONES]


def test_the_targets_hold(measured: dict[str, str]):
    """Warm queries of tail, successors and endpoint: a read. A transaction whose segments are created
    on demand: a read and a write, else a read more. A ping: a write.
    """
    rows = {section: _rows(measured[section]) for section in SECTIONS}
    for name in ("segments at the tail", "successors of an active segment", "successors of a sealed segment"):
        assert rows["questions"][name][-1][:2] == (1, 0), name
    assert rows["questions"]["endpoint of a segment"][-1][:2] == (1, 0)
    assert rows["changes"]["create a transaction"][-1][:2] == (2, 1)
    assert rows["changes"]["create a transaction whose segments are created on demand"][-1][:2] == (1, 1)
    assert rows["changes"]["ping a transaction"][-1][:2] == (0, 1)


def test_logs_cost_requests_only_when_owners_or_members_change(measured: dict[str, str]):
    rows = {name: (reads, writes) for name, ((reads, writes, *_),) in _rows(measured[LOGS]).items()}
    assert rows == {
        "open the first ledger of a log": (2, 2),  # without a record also the snapshot pointer
        "5,000 appends, acknowledged and truncated": (0, 0),
        "a member restarts and catches up": (0, 0),
        "remove a member": (0, 1),
        "add a member": (0, 1),
        "take over a log": (1, 2),
        "close a log that tier 2 has": (0, 1),
    }


def _rows(table: str) -> dict[str, list[tuple[int, ...]]]:
    """Each row's cells by its name: the first time, and asked again."""
    found: dict[str, list[tuple[int, ...]]] = {}
    name = ""
    for line in table.splitlines()[2:]:
        title, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        name = name if title == "… asked again" else title
        found.setdefault(name, []).append(tuple(int(cell or 0) for cell in cells))
    return found


def test_units_are_those_of_the_bill():
    world = StreamWorld()
    meter = Meter(world)
    small, large = Key("p", "small"), Key("p", "large")
    bill = meter.measured(lambda: world.store.write(Create(small, {"a": 1})))
    assert (bill.writes, bill.write_units) == (1, 1)
    bill = meter.measured(lambda: world.store.write(Create(large, {"a": "x" * 9_000}), Check(small, 0)))
    assert (bill.writes, bill.write_units) == (1, 2 * (9 + 1))
    bill = meter.measured(lambda: world.store.get_many([small, large, Key("p", "none")]))
    assert (bill.reads, bill.read_units) == (1, 1 + 3 + 1)
    bill = meter.measured(lambda: world.store.query("p", limit=10))
    assert (bill.reads, bill.read_units) == (1, 3)
    bill = meter.measured(lambda: world.segment_stores.create_segments(["a", "b", "c"], SegmentScaleRate()))
    assert bill.store == 3

"""The timeline of blocks: how records become figures and a picture, and that real processes give all stations."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import timeline
from benchmarks.block_times import (
    CLIENT_STATIONS,
    IN_FLIGHT,
    STAGES,
    STATIONS,
    STORE_STATIONS,
    BlockTimes,
    blocks_in_flight,
    document,
    joined,
    mb_per_s,
    stage_figures,
    steady,
    table,
)
from benchmarks.settings import KIB, MIB, AppendLoad
from benchmarks.timeline_picture import COLOURS, ROWS_MAX, TICKS_MAX, chosen_blocks, draw, tick_step_ms

MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"


def _block(number: int, begin_ms: int = 0, stage_ms: int = 1) -> BlockTimes:
    times = tuple((begin_ms + stage_ms * at) * MS for at in range(len(STATIONS)))
    return BlockTimes(number, MIB, times)


def _records(block: BlockTimes) -> tuple[dict[str, int], dict[str, int]]:
    key = {"writer": 7, "number": block.number}
    client = {station: block.at(station) for station in CLIENT_STATIONS}
    return key | client | {"size_bytes": block.size_bytes}, key | {each: block.at(each) for each in STORE_STATIONS}


def test_each_station_is_noted_by_one_process() -> None:
    assert sorted((*CLIENT_STATIONS, *STORE_STATIONS)) == sorted(STATIONS)
    assert [stage.begin for stage in STAGES[1:]] == [stage.end for stage in STAGES[:-1]]
    assert len(COLOURS) == len(STAGES) == len(set(COLOURS))


def test_records_of_both_processes_are_joined_by_number() -> None:
    blocks = [_block(20, 5), _block(10)]
    client, store = zip(*map(_records, blocks), strict=True)
    assert joined(client, store[::-1]) == [blocks[1], blocks[0]]
    assert joined(client, store[:1]) == [blocks[0]], "a block that the store did not note is left out"
    assert joined(client, [{**each, "writer": 8} for each in store]) == []


def test_stations_out_of_order_are_refused() -> None:
    client, store = _records(_block(10))
    with pytest.raises(ValueError, match="block 10 passed its stations in another order"):
        joined([client], [store | {"written": store["writing"] - 1}])


def test_a_block_was_sent_when_the_store_had_it() -> None:
    """The client looks at the clock after its call that sends, so the store may have the block before that."""
    client, store = _records(_block(10))
    (found,) = joined([client | {"sent": client["sent"] + 1_500_000}], [store])
    assert found.at("sent") == found.at("accepted") == store["accepted"]
    with pytest.raises(ValueError, match="block 10 passed its stations in another order"):
        joined([client], [store | {"accepted": client["taken"] - 1}])


def test_both_ends_of_a_run_are_left_out() -> None:
    blocks = [_block(number) for number in range(20)]
    assert [block.number for block in steady(blocks)] == list(range(2, 18))
    assert steady(blocks[:3]) == blocks[:3]


def test_shares_are_of_the_time_in_flight() -> None:
    found = stage_figures([_block(1), _block(2, stage_ms=3), _block(3, stage_ms=2)])
    assert [figures.median_ms for figures in found] == [2.0] * len(STAGES)
    assert [figures.p99_ms for figures in found] == [3.0] * len(STAGES)
    assert [figures.share is None for figures in found] == [stage not in IN_FLIGHT for stage in STAGES]
    assert sum(figures.share or 0 for figures in found) == pytest.approx(1)


def test_blocks_in_flight_are_counted_over_the_run() -> None:
    """Each is in flight for ten stages of 1 ms."""
    assert blocks_in_flight([_block(1), _block(2)]) == 2
    assert blocks_in_flight([_block(1), _block(2, begin_ms=10)]) == 1


def test_the_rate_counts_from_the_first_acknowledgement() -> None:
    blocks = [_block(1), _block(2, begin_ms=10), _block(3, begin_ms=20)]
    assert mb_per_s(blocks) == pytest.approx(2 * MIB / 0.020 / 1e6)


def test_the_table_and_the_document_have_every_stage() -> None:
    blocks = [_block(1), _block(2, begin_ms=5)]
    lines = table(blocks).splitlines()
    assert len(lines) == 1 + len(STAGES)
    for line, stage in zip(lines[1:], STAGES, strict=True):
        assert line.startswith(stage.name)
        assert stage.place in line
    assert [each["stage"] for each in document(blocks)["stages"]] == [stage.name for stage in STAGES]


def test_the_picture_has_a_bar_for_each_stage_in_flight() -> None:
    root = ElementTree.fromstring(draw("1 < 2", [_block(1), _block(2, begin_ms=3)]))
    bars = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert root.findtext(f"{SVG}title") == "1 < 2"
    by_row: dict[str, list[tuple[float, float]]] = {}
    for bar in bars:
        x, width = float(bar.attrib["x"]), float(bar.attrib["width"])
        by_row.setdefault(bar.attrib["y"], []).append((x, x + width))
    first, second = by_row.values()
    assert len(first) == len(IN_FLIGHT), "what comes before the first block is taken is not drawn"
    assert len(second) == len(STAGES)
    for bars_of_row in (first, second):
        assert all(left == pytest.approx(end, abs=0.02) for (_, end), (left, _) in pairwise(bars_of_row))


def test_consecutive_blocks_of_the_middle_are_drawn() -> None:
    blocks = [_block(number) for number in range(100)]
    assert [block.number for block in chosen_blocks(blocks)] == list(range(38, 38 + ROWS_MAX))
    assert chosen_blocks(blocks[:5]) == blocks[:5]


@pytest.mark.parametrize(("span_ms", "step_ms"), [(9, 1), (10, 1), (11, 2), (45, 5), (0.4, 0.05), (1700, 200)])
def test_ticks_are_round_and_few(span_ms: float, step_ms: float) -> None:
    assert tick_step_ms(span_ms) == pytest.approx(step_ms)
    assert span_ms / tick_step_ms(span_ms) <= TICKS_MAX


def test_real_processes_note_every_station(tmp_path: Path) -> None:
    """`measure` refuses blocks that passed their stations in another order."""
    run = timeline.measure(AppendLoad(10 * KIB, 800), 100, tmp_path / "log")
    written_bytes = 800 * (10 * KIB + 8)
    assert len(run.blocks) >= 5
    assert sum(block.size_bytes for block in run.blocks) <= written_bytes
    assert [block.number for block in run.blocks] == sorted({block.number for block in run.blocks})
    assert blocks_in_flight(run.blocks) >= 1
    assert [figures.stage.name for figures in stage_figures(run.blocks) if figures.median_ms <= 0] == []
    assert run.title.startswith("Events of 10 KiB: ")


STUCK_STORE = """#!/bin/sh
case "$*" in *timed_client*) echo "[]"; exit ;; esac
echo "ready 1"
echo $$ > "$0.pid"
exec sleep 600
"""


def test_a_store_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(STUCK_STORE)
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(timeline, "STOP_TIMEOUT_S", 1.0)
    with pytest.raises(subprocess.TimeoutExpired):
        timeline.measure(AppendLoad(KIB, 1), 1, tmp_path / "log")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "python.pid").read_text()), 0)

"""When a block passed each station on its way from the client to the disk and back. Pure values and functions.

Times are nanoseconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Stage:
    """What happens to a block between two stations, and which thread or buffer it is in meanwhile."""

    name: str
    begin: str
    end: str
    place: str


STAGES: Final = (
    Stage("filled", "opened", "full", "client, user's thread"),
    Stage("ready, waits for its turn", "full", "taken", "client, accumulator"),
    Stage("joined and sent", "taken", "sent", "client, loop"),
    Stage("on its way to the store", "sent", "accepted", "sockets; store, loop"),
    Stage("made a log entry", "accepted", "submitted", "store, loop"),
    Stage("waits for the commit before", "submitted", "committing", "store, journal's queue"),
    Stage("checksum and headers", "committing", "writing", "store, journal's thread"),
    Stage("written and synced", "writing", "written", "disk"),
    Stage("waits for the store's loop", "written", "appended", "store, loop's queue"),
    Stage("acknowledgement sent", "appended", "acknowledged", "store, loop"),
    Stage("acknowledgement on its way", "acknowledged", "replied", "sockets; client, loop"),
    Stage("settled", "replied", "completed", "client, loop"),
)
STATIONS: Final = (STAGES[0].begin, *(stage.end for stage in STAGES))
CLIENT_STATIONS: Final = ("opened", "full", "taken", "sent", "replied", "completed")
STORE_STATIONS: Final = ("accepted", "submitted", "committing", "writing", "written", "appended", "acknowledged")
IN_FLIGHT: Final = STAGES[2:]
"""From the moment the loop takes a block until its acknowledgement is settled: the block counts as in flight."""

EDGE_SHARE: Final = 0.1
"""The share of the blocks at each end of a run that are left out: there the chain fills and empties."""

Key = tuple[int, int]
"""The id of the writer, and the number of the last event of a block: client and store know both."""


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """One block. `times_ns` are those of STATIONS, in order."""

    number: int
    size_bytes: int
    times_ns: tuple[int, ...]

    def at(self, station: str) -> int:
        return self.times_ns[STATIONS.index(station)]

    def stage_ns(self, stage: Stage) -> int:
        return self.at(stage.end) - self.at(stage.begin)

    @property
    def in_flight_ns(self) -> int:
        return self.at(IN_FLIGHT[-1].end) - self.at(IN_FLIGHT[0].begin)


@dataclass(frozen=True, slots=True)
class StageFigures:
    """Milliseconds, and the share of the time in flight; None for a stage before it."""

    stage: Stage
    median_ms: float
    p99_ms: float
    share: float | None


def joined(client: Sequence[Mapping[str, int]], store: Sequence[Mapping[str, int]]) -> list[BlockTimes]:
    """The blocks that passed every station, in the order of their numbers.

    Each record has `writer`, `number` and the stations of its process; the client's has `size_bytes`, too.

    Raises:
        ValueError: a block passed its stations in another order, so that the clocks or the recorders are wrong.
    """
    of_store = {(record["writer"], record["number"]): record for record in store}
    found = []
    for record in client:
        other = of_store.get((record["writer"], record["number"]), {})
        both = {**other, **record}
        if all(station in both for station in STATIONS):
            # The client looks at the clock after its call that sends: the store may have a small block before that.
            both["sent"] = min(both["sent"], both["accepted"])
            found.append(BlockTimes(record["number"], record["size_bytes"], tuple(both[each] for each in STATIONS)))
            if list(found[-1].times_ns) != sorted(found[-1].times_ns):
                raise ValueError(f"block {record['number']} passed its stations in another order: {found[-1]}")
    return sorted(found, key=lambda block: block.number)


def steady(blocks: Sequence[BlockTimes]) -> Sequence[BlockTimes]:
    """The blocks without those at both ends of the run."""
    edge = int(len(blocks) * EDGE_SHARE)
    return blocks[edge : len(blocks) - edge]


def stage_figures(blocks: Sequence[BlockTimes]) -> list[StageFigures]:
    """The figures of each stage, in the order of the way. There must be a block."""
    whole_ns = sum(block.in_flight_ns for block in blocks)
    found = []
    for stage in STAGES:
        spent_ns = sorted(block.stage_ns(stage) for block in blocks)
        p99_ns = spent_ns[min(len(spent_ns) - 1, int(len(spent_ns) * 0.99))]
        share = sum(spent_ns) / whole_ns if stage in IN_FLIGHT else None
        found.append(StageFigures(stage, statistics.median(spent_ns) / 1e6, p99_ns / 1e6, share))
    return found


def blocks_in_flight(blocks: Sequence[BlockTimes]) -> float:
    """How many blocks were in flight on average."""
    began = min(block.at("taken") for block in blocks)
    ended = max(block.at("completed") for block in blocks)
    return sum(block.in_flight_ns for block in blocks) / (ended - began)


def mb_per_s(blocks: Sequence[BlockTimes]) -> float:
    """Bytes of the blocks, with the headers of events, from the first acknowledgement to the last."""
    ended = [block.at("completed") for block in blocks]
    later = sorted(blocks, key=lambda block: block.at("completed"))[1:]
    return sum(block.size_bytes for block in later) / max(1, max(ended) - min(ended)) * 1e3


def table(blocks: Sequence[BlockTimes]) -> str:
    """One line per stage."""
    rows = [("stage", "where", "median ms", "p99 ms", "of in flight")]
    for figures in stage_figures(blocks):
        share = "" if figures.share is None else f"{figures.share:.0%}"
        stage = figures.stage
        rows.append((stage.name, stage.place, f"{figures.median_ms:.2f}", f"{figures.p99_ms:.2f}", share))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            f"{cell:<{width}}" if at < 2 else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(lines)


def document(blocks: Sequence[BlockTimes]) -> dict[str, Any]:
    """What is written into the result file."""
    return {
        "blocks": len(blocks),
        "mb_per_s": round(mb_per_s(blocks), 1),
        "blocks_in_flight": round(blocks_in_flight(blocks), 2),
        "stages": [
            {
                "stage": figures.stage.name,
                "where": figures.stage.place,
                "median_ms": round(figures.median_ms, 3),
                "p99_ms": round(figures.p99_ms, 3),
                "of_in_flight": None if figures.share is None else round(figures.share, 3),
            }
            for figures in stage_figures(blocks)
        ],
    }

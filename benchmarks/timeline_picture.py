"""The ways of some blocks as an SVG: a row per block, a bar per stage, time to the right. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.block_times import IN_FLIGHT, STAGES, BlockTimes, Stage

ROWS_MAX: Final = 24
WIDTH, LEFT, RIGHT, TOP = 960, 56, 16, 46
ROW_HEIGHT, BAR_HEIGHT = 15, 12
AXIS_HEIGHT, LEGEND_ROW_HEIGHT, LEGEND_COLUMNS = 34, 18, 2
TICKS_MAX: Final = 10
COLOURS: Final = (
    *("#d9d9d9", "#bdbdbd"),  # not in flight
    *("#1f77b4", "#aec7e8", "#2ca02c", "#ff9896", "#8c564b"),
    *("#d62728", "#ffbb78", "#98df8a", "#c5b0d5", "#9467bd"),
)
"""One per stage. The pale ones are those in which the block waits."""

STYLE: Final = (
    "text{font:11px sans-serif;fill:#222}.title{font-size:14px;font-weight:600}.axis{stroke:#999;stroke-width:1}"
    ".number{text-anchor:end}.tick{text-anchor:middle}"
)


def chosen_blocks(blocks: Sequence[BlockTimes]) -> Sequence[BlockTimes]:
    """Consecutive blocks from the middle of the run."""
    first = max(0, (len(blocks) - ROWS_MAX) // 2)
    return blocks[first : first + ROWS_MAX]


def draw(title: str, blocks: Sequence[BlockTimes]) -> str:
    """The picture. Time starts when the first of the blocks is taken by the client's loop.

    Stages before that are drawn as far as they reach into it. There must be a block.
    """
    begin_ns = min(block.at(IN_FLIGHT[0].begin) for block in blocks)
    end_ns = max(block.at(IN_FLIGHT[-1].end) for block in blocks)
    bottom = TOP + len(blocks) * ROW_HEIGHT
    legend_rows = -(-len(STAGES) // LEGEND_COLUMNS)
    height = bottom + AXIS_HEIGHT + legend_rows * LEGEND_ROW_HEIGHT + 8
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect x="0" y="0" width="{WIDTH}" height="{height}" fill="#fff"/>',
            f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>',
            *_axis(begin_ns, end_ns, bottom),
            *(bar for row, block in enumerate(blocks) for bar in _row(row, block, begin_ns, end_ns)),
            *_legend(bottom + AXIS_HEIGHT),
            "</svg>",
        ]
    )


def tick_step_ms(span_ms: float) -> float:
    """1, 2 or 5 times a power of ten, so that at most TICKS_MAX ticks are drawn."""
    step = 10.0**-3
    while True:
        for factor in (1, 2, 5):
            if span_ms / (step * factor) <= TICKS_MAX:
                return step * factor
        step *= 10


def _x(time_ns: int, begin_ns: int, end_ns: int) -> float:
    share = (time_ns - begin_ns) / max(1, end_ns - begin_ns)
    return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, share))


def _row(row: int, block: BlockTimes, begin_ns: int, end_ns: int) -> Iterator[str]:
    top = TOP + row * ROW_HEIGHT
    yield f'<text class="number" x="{LEFT - 6}" y="{top + 10}">{block.number}</text>'
    for stage, colour in zip(STAGES, COLOURS, strict=True):
        left, right = (_x(block.at(station), begin_ns, end_ns) for station in (stage.begin, stage.end))
        if right > left:
            title = f"{stage.name}, {stage.place}: {block.stage_ns(stage) / 1e6:.2f} ms"
            yield (
                f'<rect x="{left:.2f}" y="{top}" width="{right - left:.2f}" height="{BAR_HEIGHT}" fill="{colour}">'
                f"<title>{escape(title)}</title></rect>"
            )


def _axis(begin_ns: int, end_ns: int, bottom: int) -> Iterator[str]:
    span_ms = (end_ns - begin_ns) / 1e6
    step_ms = tick_step_ms(span_ms)
    for number in range(int(span_ms / step_ms) + 1):
        x = _x(begin_ns + int(number * step_ms * 1e6), begin_ns, end_ns)
        yield f'<line class="axis" x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom + 4}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 18}">{number * step_ms:g} ms</text>'


def _legend(top: int) -> Iterator[str]:
    column_width = (WIDTH - LEFT - RIGHT) / LEGEND_COLUMNS
    rows = -(-len(STAGES) // LEGEND_COLUMNS)
    for number, (stage, colour) in enumerate(zip(STAGES, COLOURS, strict=True)):
        x, y = LEFT + column_width * (number // rows), top + LEGEND_ROW_HEIGHT * (number % rows)
        yield f'<rect x="{x:.1f}" y="{y}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 18:.1f}" y="{y + 10}">{escape(_label(stage))}</text>'


def _label(stage: Stage) -> str:
    return f"{stage.name} ({stage.place})"

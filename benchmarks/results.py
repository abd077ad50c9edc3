"""Figures gathered over rounds: the medians, and the table that puts each beside the limit it is held against."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Figure:
    """One quantity; `beside` names the figure that bounds it, which may be missing."""

    name: str
    unit: str
    beside: str | None
    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


class Results:
    """Figures by name, in the order in which they first came."""

    def __init__(self) -> None:
        self._figures: dict[str, Figure] = {}

    def add(self, name: str, value: float, unit: str, *, beside: str | None = None) -> None:
        """One more round of the figure `name`."""
        self._figures.setdefault(name, Figure(name, unit, beside)).rounds.append(value)

    def as_json(self) -> dict[str, Any]:
        return {
            figure.name: {
                "unit": figure.unit,
                "median": _rounded(figure.median),
                "rounds": [_rounded(value) for value in figure.rounds],
                "beside": figure.beside,
                "of_beside": _rounded(figure.median / limit.median) if (limit := self._limit(figure)) else None,
            }
            for figure in self._figures.values()
        }

    def table(self) -> str:
        """One line per figure: median, range over the rounds, and its share of the limit."""
        rows = [("", "median", "unit", "min - max", "beside its limit")]
        for figure in self._figures.values():
            low, high = min(figure.rounds), max(figure.rounds)
            share = ""
            if limit := self._limit(figure):
                share = f"{figure.median / limit.median:5.2f} x {limit.name} ({_shown(limit.median)} {limit.unit})"
            rows.append((figure.name, _shown(figure.median), figure.unit, f"{_shown(low)} - {_shown(high)}", share))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [_line(row, widths) for row in rows]
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join(lines)

    def _limit(self, figure: Figure) -> Figure | None:
        """Medians of the same rounds are compared."""
        return self._figures.get(figure.beside) if figure.beside else None


def document(results: Results, **facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is written to results.json."""
    return {**facts, "figures": results.as_json()}


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name, median, unit, extremes, raw = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
    return f"{name}  {median.strip():>{widths[1]}} {unit}  {extremes.strip():>{widths[3]}}  {raw}".rstrip()


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")

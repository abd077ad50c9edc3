"""Draws what Spark computed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd


def draw_delays(per_carrier: pd.DataFrame, per_hour: pd.DataFrame, file: Path) -> None:
    """Two panels as a PNG: mean delays by carrier, and by scheduled hour of departure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5), layout="constrained")
    _bars(left, per_carrier.sort_values("mean_dep_delay"), "carrier", "Mean delay by carrier")
    _bars(right, per_hour.sort_values("hour"), "hour", "Mean delay by scheduled hour of departure")
    figure.suptitle("Flights from New York City in 2013, read from a stream")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _bars(axes, rows: pd.DataFrame, by: str, title: str) -> None:  # type: ignore[no-untyped-def]
    positions = range(len(rows))
    axes.bar([position - 0.2 for position in positions], rows["mean_dep_delay"], width=0.4, label="departure")
    axes.bar([position + 0.2 for position in positions], rows["mean_arr_delay"], width=0.4, label="arrival")
    axes.set_xticks(list(positions), [str(value) for value in rows[by]])
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlabel(by)
    axes.set_ylabel("minutes")
    axes.set_title(title)
    axes.legend()

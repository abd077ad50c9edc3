"""What a job of windows counts: the length of its windows, the fields, and the form of its results. Pure.

A window begins at a multiple of the slide since 1970 (UTC), and contains the times from there on that are less than its
length later. If the slide is shorter than the window, an event belongs to several windows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from headrace.model.errors import InvalidRequestError
from headrace.spark.option_values import invalid_option, required, whole_number

WINDOW_S_MAX = 366 * 24 * 3600
WINDOWS_PER_EVENT_MAX = 100
"""An event becomes one row for each of its windows before the rows are added up."""
FIELDS_MAX = 50

VALUE_TYPE = "decimal(24,9)"
"""Of a summed value: numbers below 10^15, with 9 decimal places. Sums of decimals do not depend on the order."""
SUM_TYPE = "decimal(38,9)"
"""10^14 of the largest values fit."""

START, END, COUNT = "window_start", "window_end", "count"


@dataclass(frozen=True, slots=True)
class WindowDefinition:
    """The windows and the fields of the JSON objects. `slide_ms` divides `size_ms`."""

    size_ms: int
    slide_ms: int
    time_field: str
    keys: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    minima: tuple[str, ...] = ()
    maxima: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        """The fields with numbers."""
        return tuple(dict.fromkeys((*self.sums, *self.minima, *self.maxima)))

    def fields(self) -> dict[str, str]:
        """What to read of an object: names and types. Keys and times are read as text, because both may be numbers."""
        return dict.fromkeys((self.time_field, *self.keys), "string") | dict.fromkeys(self.values, "double")

    def key_columns(self) -> list[str]:
        """The columns of the keys in the table of sums, whose names need no quotes."""
        return [f"key_{number}" for number in range(len(self.keys))]

    def totals(self) -> dict[str, tuple[str, int]]:
        """The columns with totals after the count: how rows are added up, and the index of the field in `values`."""
        columns = {}
        for how, fields in (("sum", self.sums), ("min", self.minima), ("max", self.maxima)):
            for field in fields:
                index = self.values.index(field)
                columns[f"{how}_{index}"] = (how, index)
        return columns

    def columns(self) -> dict[str, str]:
        """Names and types of the columns in the table of sums: a row is a window of some keys."""
        types = {START: "bigint"} | dict.fromkeys(self.key_columns(), "string") | {COUNT: "bigint"}
        return types | {name: SUM_TYPE if how == "sum" else VALUE_TYPE for name, (how, _) in self.totals().items()}

    def names(self) -> list[str]:
        """The fields of a result, in order."""
        totals = [f"{how}_{self.values[index]}" for how, index in self.totals().values()]
        return [START, END, *self.keys, COUNT, *totals]

    def aligned(self, time_ms: int) -> int:
        """The latest end of a window that is not after a time."""
        return time_ms - time_ms % self.slide_ms

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def window_definition(arguments: Mapping[str, str | None]) -> WindowDefinition:
    """The definition in a job's arguments.

    Raises:
        InvalidRequestError: an argument is missing, or cannot be used; the message says which.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    size_s = whole_number(given, "window_s", most=WINDOW_S_MAX)
    if size_s is None:
        raise invalid_option("window_s", "it is required")
    slide_s = whole_number(given, "slide_s", most=size_s) or size_s
    if size_s % slide_s or size_s // slide_s > WINDOWS_PER_EVENT_MAX:
        raise invalid_option(
            "slide_s", f"{slide_s} must divide the {size_s} s of a window into at most {WINDOWS_PER_EVENT_MAX} parts"
        )
    lists = {name: _names(given, name) for name in ("keys", "sum", "min", "max")}
    definition = WindowDefinition(
        size_s * 1000, slide_s * 1000, required(given, "time_field"), *(lists[name] for name in lists)
    )
    _check_names(definition)
    return definition


def result_event(definition: WindowDefinition, row: Sequence[Any]) -> tuple[bytes, str]:
    """The event of a closed window, a JSON object, and its routing key; `row` has the values of `columns()` in order.

    The routing key is the JSON array of the keys: the windows of the same keys are in one segment, in order.
    """
    start, keys, count = int(row[0]), row[1 : 1 + len(definition.keys)], int(row[1 + len(definition.keys)])
    texts = [str(start), str(start + definition.size_ms), *map(json.dumps, keys), str(count)]
    texts += [number_text(value) for value in row[2 + len(definition.keys) :]]
    pairs = (f"{json.dumps(name)}: {text}" for name, text in zip(definition.names(), texts, strict=True))
    return ("{" + ", ".join(pairs) + "}").encode(), json.dumps(list(keys))


def number_text(value: Decimal | None) -> str:
    """A number as JSON, without zeros at its end; null if there was no value."""
    if value is None:
        return "null"
    return format(value.normalize(), "f") if value else "0"


def _names(given: Mapping[str, str], argument: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in given[argument].split(",")) if argument in given else ()
    if "" in names or len(set(names)) != len(names):
        raise invalid_option(argument, f"{given[argument]!r} has an empty name, or a name twice")
    if len(names) > FIELDS_MAX:
        raise invalid_option(argument, f"{len(names)} fields are too many: at most {FIELDS_MAX}")
    return names


def _check_names(definition: WindowDefinition) -> None:
    read = Counter(name.lower() for name in (definition.time_field, *definition.keys, *definition.values))
    written = Counter(name.lower() for name in definition.names())
    for what, names in (("read as a time, a key or a value", read), ("written", written)):
        twice = sorted(name for name, count in names.items() if count > 1)
        if twice:
            raise InvalidRequestError(
                f"the field {twice[0]!r} would be {what} twice, which Spark does not tell apart, nor names in another"
                " case: choose other fields",
                code="invalid_fields",
            )

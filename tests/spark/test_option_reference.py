"""The page docs/reference/spark.md has each option that the code accepts, where it applies, and its default."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from headrace.model.errors import InvalidRequestError
from headrace.spark.metadata_tables import metadata_options
from headrace.spark.options import read_options
from headrace.spark.write_options import write_options

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark.md"
HEADER = "| Option | Where | Values | Default | |"
SPAN = re.compile(r"`([^`]+)`")
PLACES = {"batch", "stream", "table", "save", "sink"}
NO_OPTION = "no_such_name"

Check = Callable[[Mapping[str, str]], object]
read: Check = read_options
table: Check = metadata_options
save: Check = partial(write_options, streaming=False)
sink: Check = partial(write_options, streaming=True)
REQUIRED = {"controller": "http://127.0.0.1:10080", "scope": "s", "stream": "t"}
ROWS_OF_LAG = REQUIRED | {"metadata": "Lag", "start_stream_cut": "earliest"}
NEEDED = {
    "on_bad_record": {"event_format": "json", "event_schema": "id bigint"},
    "corrupt_column": {"event_format": "json", "event_schema": "id bigint", "on_bad_record": "column"},
    "default_scale_factor": {"default_segment_target_rate_events_per_sec": "100"},
}
"""What has to be given so that an option means something."""


@dataclass(frozen=True)
class Row:
    """An option in the table of the page."""

    names: tuple[str, ...]
    places: frozenset[str]
    default: str


def rows() -> Iterator[Row]:
    lines = PAGE.read_text().partition(HEADER)[2].splitlines()[2:]
    for line in lines:
        if not line.startswith("|"):
            return
        names, places, _, default, _ = (cell.strip() for cell in line.replace(r"\|", "¦").strip("|").split("|"))
        yield Row(tuple(SPAN.findall(names)), frozenset(places.split(", ")), default)


def documented(*places: str) -> set[str]:
    return {name for row in rows() if row.places & set(places) for name in row.names}


def accepted(check: Check, given: Mapping[str, str]) -> set[str]:
    """The options that the message about an unknown one lists."""
    with pytest.raises(InvalidRequestError) as raised:
        check({**given, NO_OPTION: ""})
    return set(raised.value.message.partition("the options are ")[2].split(", "))


def test_the_table_names_each_option_once() -> None:
    names = [name for row in rows() for name in row.names]
    assert len(names) == len(set(names))
    assert {place for row in rows() for place in row.places} == PLACES


@pytest.mark.parametrize(
    ("check", "given", "places"),
    [
        (read, REQUIRED, ("batch", "stream")),
        (table, ROWS_OF_LAG, ("table",)),
        (save, REQUIRED, ("save",)),
        (sink, REQUIRED, ("sink",)),
    ],
    ids=["read", "metadata table", "batch write", "streaming write"],
)
def test_the_page_has_the_options_of(check: Check, given: Mapping[str, str], places: tuple[str, ...]) -> None:
    assert documented(*places) == accepted(check, given)


DEFAULTS = [
    pytest.param(check, given, name, value[1], id=f"{name}-{place}")
    for row in rows()
    for check, given, place in (
        (read, REQUIRED, "batch"), (read, REQUIRED, "stream"), (save, REQUIRED, "save"), (sink, REQUIRED, "sink"),
    )
    for name in row.names
    if place in row.places and (value := re.fullmatch(SPAN, row.default.partition(" (")[0]))
]  # fmt: skip


@pytest.mark.parametrize(("check", "given", "name", "value"), DEFAULTS)
def test_defaults_are_those_of_the_code(check: Check, given: Mapping[str, str], name: str, value: str) -> None:
    given = {**given, **NEEDED.get(name, {})}
    assert check({**given, name: value}) == check(given)


def test_there_are_defaults_to_compare() -> None:
    assert len(DEFAULTS) > 25

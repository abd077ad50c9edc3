"""What `write_many` takes as a column of events or keys, and what it refuses before anything is queued."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from headrace.client import InvalidRequestError
from headrace.client.writing.batch_accumulator import too_large
from headrace.client.writing.column_writes import column_slices
from headrace.model.limits import EVENT_BYTES_MAX_LARGE

AB = [b"a", b"b"]
NAN = float("nan")


def dictionary(values: list[Any], kind: Any) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(range(len(values))), pa.array(values, kind))


def written(events: Any, keys: Any = None) -> list[tuple[bytes, str | None]]:
    pairs: list[tuple[bytes, str | None]] = []
    for column_slice in column_slices(events, keys, EVENT_BYTES_MAX_LARGE, too_large):
        payloads = column_slice._payloads.to_pylist()
        pairs += zip(payloads, column_slice._keys.part(0, len(payloads)), strict=True)
    return pairs


@pytest.mark.parametrize(
    "events",
    [
        AB,
        tuple(AB),
        ["a", b"b"],
        pa.array(AB, pa.binary_view()),
        pa.array(["a", "b"], pa.string_view()),
        *(dictionary(["a", "b"], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())),
        *(dictionary(AB, kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))),
        pa.chunked_array([dictionary(["a"], pa.string_view()), dictionary(["b"], pa.string_view())]),
        pa.table([AB, [1, 2], [1, 2]], names=["event", "other", "other"]),
        pd.Series(AB),
        pd.Series(["a", "b"], dtype="category"),
        pd.Series(["a", "b"], dtype="string"),
        pd.DataFrame({"event": AB}, index=[7, 5]),
        pd.Index(AB),
        np.array(AB),
        np.array(["a", b"b"], dtype=object),
        np.ma.masked_array(np.array(AB), mask=[0, 0]),
    ],
)
def test_columns_of_many_kinds_are_written(events: Any):
    assert written(events) == [(b"a", None), (b"b", None)]


@pytest.mark.parametrize("events", [[], pa.array([]), pa.array([], pa.string_view()), pd.Series([], dtype=object)])
def test_an_empty_column_writes_nothing(events: Any):
    assert written(events) == []


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ("nine char", "not one str"),
        (b"abc", "not one bytes"),
        (bytearray(b"abc"), "not one bytearray"),
        (memoryview(b"abc"), "not one memoryview"),
        (np.str_("abc"), "not one str_"),
        ({"event": AB}, "not a dict"),
        ({b"a": 1}.keys(), "not a dict_keys"),
        (set(AB), "not a set"),
        (None, "no column"),
        (5, "no column"),
        ([1, 2], "no column"),
        ([["a"]], "no column"),
        (["\ud800"], "no column"),
        ([b"a", None], "1 of the events are null"),
        ([b"a", pd.NA], "1 of the events are null"),
        ([b"a", NAN], "1 of the events are null"),
        (pd.Series([b"a", pd.NA]), "1 of the events are null"),
        (np.array([b"a", pd.NA], dtype=object), "1 of the events are null"),
        (pd.DataFrame({"event": [b"a", pd.NA]}), "1 of the events are null"),
        (pa.nulls(2), "2 of the events are null"),
        (dictionary(["a", None], pa.string_view()), "1 of the events are null"),
        (np.ma.masked_array(np.array(AB), mask=[0, 1]), "1 of the events are null"),
        (np.ma.masked_array(np.zeros((2, 2), np.uint8), mask=np.eye(2)), "masked"),
        (pa.table([AB, AB], names=["event", "event"]), '2 columns "event"'),
        (
            pa.table([AB, ["k", "k"], ["j", "j"]], names=["event", "routing_key", "routing_key"]),
            '2 columns "routing_key"',
        ),
        (pd.DataFrame([AB], columns=["event", "event"]), "cannot be exported"),
        (pd.DataFrame({0: AB}), 'no column "event"'),
        (pa.array([1]), "not int64"),
        (pa.array([1, 1]).dictionary_encode(), "not int64"),
        (pa.array([{"event": b"a"}]), "not struct"),
        (pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"])), "not run_end_encoded"),
        (pd.DataFrame({"event": [b"a"], "routing_key": [5]}), "routing keys is string, not int64"),
    ],
)
def test_what_is_no_column_of_events_is_refused(events: Any, why: str):
    with pytest.raises(InvalidRequestError, match=why):
        written(events)


@pytest.mark.parametrize(
    "keys",
    [
        ["k", None],
        ["k", pd.NA],
        ["k", NAN],
        pa.array(["k", None], pa.string_view()),
        pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array(["k"], pa.string_view())),
        pd.Series(["k", pd.NA]),
        pd.Series(["k", None], dtype="category"),
        np.array(["k", pd.NA], dtype=object),
        np.ma.masked_array(np.array(["k", "x"]), mask=[0, 1]),
    ],
)
def test_missing_keys_are_events_without_a_key(keys: Any):
    assert written(AB, keys) == [(b"a", "k"), (b"b", None)]


@pytest.mark.parametrize(
    "keys",
    [
        b"ab",
        {"a": 1, "b": 2},
        {"a", "b"},
        5,
        True,
        [1, 2],
        [["a"], ["b"]],
        ["a"],
        pa.array(AB),
        pa.array([1, 2]),
    ],
)
def test_what_is_no_column_of_keys_is_refused(keys: Any):
    with pytest.raises(InvalidRequestError):
        written(AB, keys)

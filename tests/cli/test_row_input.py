"""Rows of CSV and Parquet files as JSON, in whatever pieces the bytes of CSV arrive."""

from __future__ import annotations

import csv
import errno
import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import row_input
from headrace.cli.event_input import CountedInput, InputRules, Keys, RefusedRow
from headrace.cli.row_input import cell_json, csv_batches, json_value, parquet_batches
from headrace.model.errors import InvalidRequestError


class Pieces(io.BytesIO):
    """Gives `data` in pieces of these sizes, then the rest at once."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        super().__init__(data)
        self._sizes = iter(sizes)

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(next(self._sizes, size))


def _csv(data: bytes, **rules: Any) -> list[Any]:
    batches = csv_batches(CountedInput(io.BytesIO(data), "a.csv"), InputRules("csv", **rules))
    return [json.loads(event) for batch in batches for event in batch.events]


def _refused(data: bytes, **rules: Any) -> tuple[list[Any], list[tuple[int, str]]]:
    refused: list[RefusedRow] = []
    events = _csv(data, refuse=refused.append, **rules)
    return events, [(row.line, row.error.message) for row in refused]


CELLS = st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=5)


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), max_size=5), st.lists(st.integers(1, 9)), st.integers(1, 9))
def test_rows_do_not_depend_on_pieces(rows: list[list[str]], sizes: list[int], from_line: int):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    first_lines = []
    writer.writerow(["a", "b"])
    for row in rows:
        first_lines.append(text.getvalue().count("\n") + 1)
        writer.writerow(row)
    rules = InputRules("csv", text_cells=True, from_line=from_line)
    batches = list(csv_batches(CountedInput(Pieces(text.getvalue().encode(), sizes)), rules))
    assert [json.loads(event) for batch in batches for event in batch.events] == [
        {"a": a, "b": b} for (a, b), line in zip(rows, first_lines, strict=True) if line >= from_line
    ]


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("", None),
        ("true", True),
        ("false", False),
        ("True", "True"),
        ("0", 0),
        ("-7", -7),
        ("1.50", 1.5),
        ("1e-05", 1e-05),
        ("123456789012345678", 123456789012345678),
        ("1234567890123456789", "1234567890123456789"),
        ("007", "007"),
        ("+1", "+1"),
        (".5", ".5"),
        ("1e999", "1e999"),
        ("NaN", "NaN"),
        ("NA", "NA"),
        ("٣", "٣"),
        (' "x"\n', ' "x"\n'),
    ],
)
def test_a_cell_is_what_json_would_read(cell: str, value: Any):
    document = json.loads(cell_json(cell))
    assert (document, type(document)) == (value, type(value))


def test_digits_of_a_number_are_kept():
    assert cell_json("1.10") == "1.10"


def test_rows_have_the_names_of_the_header():
    assert _csv(b"\xef\xbb\xbfid,name\r\n1,Anna\r\n\r\n2,\r\n") == [{"id": 1, "name": "Anna"}, {"id": 2, "name": None}]
    assert _csv(b"id;name\n1;a,b\n", delimiter=";") == [{"id": 1, "name": "a,b"}]
    assert _csv(b"id,name\n1,\n", text_cells=True) == [{"id": "1", "name": ""}]


def test_bad_rows_are_named_and_left_out():
    data = b'id,name\n1,a\n2\n3,"b\nc"\n4,\xff\n5,"d"e\n6,f\n'
    events, refused = _refused(data)
    assert events == [{"id": 1, "name": "a"}, {"id": 3, "name": "b\nc"}, {"id": 6, "name": "f"}]
    assert refused == [
        (3, "line 3 has 1 cell, but the header has 2 names"),
        (6, "line 6 is not UTF-8"),
        (7, "line 7 is not CSV: ',' expected after '\"'"),
    ]


def test_an_open_quotation_takes_no_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(row_input, "ROW_BYTES_MAX", 40)
    _, refused = _refused(b'id\n1\n"2\n' + b"x\n" * 1000)
    assert refused[0] == (3, "line 3: the row has more than 40 bytes; is a quotation mark without its end?")
    _, refused = _refused(b'id\n1\n"2\nx\n')
    assert refused == [(3, "line 3 is not CSV: unexpected end of data")]


def test_a_row_is_no_larger_than_an_event():
    _, refused = _refused(b"id\n1\n1234567890\n", event_bytes_max=8)
    assert refused == [(3, "line 3 has more than 8 bytes")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a.csv has no header: its first line must"),
        (b"\n1\n", "a.csv has no header: its first line must"),
        (b"\xff\n1\n", "a.csv has no header: line 1 is not UTF-8"),
        (b"a,b,a\n", "a.csv has two fields with the name 'a'"),
        (b"a,b\n1,2\n", "a.csv has no field 'key' for --key-field; its fields are a, b"),
    ],
)
def test_a_table_needs_a_header(data: bytes, message: str):
    with pytest.raises(InvalidRequestError, match=message.replace(".", r"\.")):
        _csv(data, keys=Keys(field="key"))


def test_keys_of_csv_are_texts():
    data = b"n,key\n1,07\n2,\n3,true\n"
    batches = csv_batches(CountedInput(io.BytesIO(data)), InputRules("csv", keys=Keys(field="key", default="none")))
    assert [key for batch in batches for key in batch.routing_keys or ()] == ["07", "none", "true"]
    events, refused = _refused(data, keys=Keys(field="key"))
    assert [event["n"] for event in events] == [1, 3]
    assert refused == [(3, "line 3 has no field 'key' with the routing key; --default-key is for such rows")]


def _parquet(table: pa.Table, **rules: Any) -> tuple[list[Any], list[str | None], list[int]]:
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=700)
    file.seek(0)
    refused: list[RefusedRow] = []
    source = CountedInput(file, "a.parquet")
    batches = list(parquet_batches(source, InputRules("parquet", refuse=refused.append, **rules)))
    assert source.bytes_read == file.getbuffer().nbytes
    events = [json.loads(event) for batch in batches for event in batch.events]
    keys = [key for batch in batches for key in batch.routing_keys or ()]
    return events, keys, [row.line for row in refused]


@pytest.mark.parametrize("from_line", [1, 2, 512, 513, 1500, 2000])
def test_rows_of_parquet_are_numbered(from_line: int):
    table = pa.table({"n": list(range(1, 1501)), "key": ["k" if n % 500 else None for n in range(1, 1501)]})
    events, keys, refused = _parquet(table, from_line=from_line, keys=Keys(field="key"))
    assert refused == [n for n in (500, 1000, 1500) if n >= from_line]
    assert [event["n"] for event in events] == [n for n in range(from_line, 1501) if n % 500]
    assert set(keys) <= {"k"}


def test_values_of_parquet_are_json():
    moment = datetime(2026, 11, 23, 10, 5, tzinfo=UTC)
    table = pa.table(
        {
            "at": pa.array([moment], pa.timestamp("ns", "UTC")),
            "day": [date(2026, 11, 23)],
            "price": [Decimal("1.50")],
            "bytes": [b"\xff"],
            "ratio": [float("nan")],
            "list": [[{"x": 1.5, "y": None}]],
        }
    )
    events, _, _ = _parquet(table)
    assert events == [
        {
            "at": "2026-11-23T10:05:00+00:00",
            "day": "2026-11-23",
            "price": "1.50",
            "bytes": "/w==",
            "ratio": None,
            "list": [{"x": 1.5, "y": None}],
        }
    ]
    assert json_value(timedelta(seconds=1.5)) == 1.5


def test_keys_of_parquet_are_texts():
    _, keys, refused = _parquet(pa.table({"key": [7, None]}), keys=Keys(field="key", default="none"))
    assert (keys, refused) == (["7", "none"], [])


def test_other_files_are_not_parquet():
    with pytest.raises(InvalidRequestError, match=r"cannot read a\.parquet as Parquet: "):
        list(parquet_batches(CountedInput(io.BytesIO(b"n\n1\n"), "a.parquet"), InputRules("parquet")))
    with pytest.raises(InvalidRequestError, match="has no field 'k'"):
        _parquet(pa.table({"n": [1]}), keys=Keys(field="k"))


def test_parquet_is_not_read_from_a_pipe(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Pieces, "seekable", lambda self: False)
    pipe = Pieces(b"", [])
    with pytest.raises(InvalidRequestError, match="name a file"):
        list(parquet_batches(CountedInput(pipe), InputRules("parquet")))


def test_a_row_that_is_not_text_is_refused_whole():
    """Else its last lines would pass for a row."""
    events, refused = _refused(b'id,name\n1,"a\n\xff\n7,b"\n2,c\n')
    assert events == [{"id": 2, "name": "c"}]
    assert refused == [(2, "line 3 is not UTF-8")]
    with pytest.raises(InvalidRequestError, match="no header: line 1 is not UTF-8"):
        _csv(b"id,\xff\n1,2\n")


def test_line_ends_in_quoted_cells_are_kept():
    events, refused = _refused(b'id,name\r\n1,"a\r\nb\nc"\r\n\r\n2\r\n3,d\r')
    assert events == [{"id": 1, "name": "a\r\nb\nc"}, {"id": 3, "name": "d"}]
    assert refused == [(6, "line 6 has 1 cell, but the header has 2 names")]


def test_a_file_that_cannot_be_read_is_no_refused_row():
    class Failing(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            data = super().read1(size)
            if not data:
                raise OSError(errno.EIO, "Input/output error")
            return data

    refused: list[RefusedRow] = []
    batches = csv_batches(CountedInput(Failing(b"id\n1\n"), "a.csv"), InputRules("csv", refuse=refused.append))
    assert next(batches).events == [b'{"id":1}']
    with pytest.raises(InvalidRequestError, match=r"^cannot read a\.csv: Input/output error$"):
        list(batches)
    assert refused == []


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (pa.array([0], pa.date32()), pa.array([10**7], pa.date32())),
        (pa.array([0], pa.timestamp("us")), pa.array([2**62], pa.timestamp("us"))),
        (pa.array([0], pa.duration("s")), pa.array([2**50], pa.duration("s"))),
        (pa.array(["a"]), pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"\xff"]).buffers()[1:]])),
    ],
)
def test_values_that_python_cannot_have_are_refused(good: pa.Array, bad: pa.Array):
    file = io.BytesIO()
    pq.write_table(pa.table({"v": pa.chunked_array([good, bad, good])}), file)
    file.seek(0)
    refused: list[RefusedRow] = []
    batches = parquet_batches(CountedInput(file), InputRules("parquet", refuse=refused.append))
    assert sum(len(batch.events) for batch in batches) == 2
    assert [row.line for row in refused] == [2]
    assert refused[0].error.message.startswith("row 2 has a value that cannot be converted: ")


def test_a_value_that_json_has_not_is_a_string():
    identifier = UUID(int=7)
    assert json_value({"id": identifier, "all": [identifier]}) == {"id": str(identifier), "all": [str(identifier)]}

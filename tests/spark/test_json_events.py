"""Events as JSON records through a real Spark session: the same rows on all versions, and bad records by option."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble

from headrace.model.errors import InvalidRequestError
from headrace.spark import dead_letters, good_records, has_data_source, read_batch, register, with_dead_letters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]

SCHEMA = (
    "id bigint, flag boolean, t tinyint, s smallint, i int, f float, d double, name string, raw binary, day date,"
    " at timestamp, local timestamp_ntz, price decimal(20,2), tags array<string>, `odd, ``name` map<string,array<int>>,"
    " place struct<lat: double, `in side`: struct<n: int>>, event string"
)
GOOD = (
    b'{"id":9223372036854775807,"flag":true,"t":-128,"s":32767,"i":-2147483648,"f":0.5,"d":1e300,"name":"\\u00e9",'
    b'"raw":"AAH/","day":"1066-10-14","at":"2026-11-23T10:00:00.123456789+02:00","local":"2026-11-23 10:00",'
    b'"price":"123456789012345678.90","tags":["a",null],"odd, `name":{"k":[1]},"place":{"lat":-1,"in side":{"n":7}},'
    b'"event":"e","extra":{"x":[1,2]}}'
)
BAD = b'{"id": 1.5}'
LETTER = (
    "scope string, stream string, segment_id bigint, offset bigint, reason string, event_bytes bigint, event binary"
)

Load = Callable[..., "DataFrame"]


DATA_SOURCE, FUNCTION = "data source", "function"
either_form = pytest.mark.parametrize("load", [DATA_SOURCE, FUNCTION], indirect=True)


@pytest.fixture
def load(spark: SparkSession, store: StoreDouble, request: pytest.FixtureRequest) -> Load:
    """Reads with the data source, on engines without it and where a test asks for that with the function."""
    form = getattr(request, "param", DATA_SOURCE if has_data_source(spark) else FUNCTION)
    if form == DATA_SOURCE:
        pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")
        register(spark)

    def loaded(**options: Any) -> DataFrame:
        where = {"controller": store.url, "scope": SCOPE, "stream": STREAM, "event_format": "json"}
        if form == FUNCTION:
            return read_batch(spark, where | options)
        return spark.read.format("headrace").options(**where, **options).load()

    return loaded


@either_form
def test_every_type_has_the_same_value_everywhere(load: Load, store: StoreDouble) -> None:
    store.stream.append(0.1, GOOD)
    store.stream.append(0.1, b"{}")
    frame = load(event_schema=SCHEMA, columns="offset,event")
    full, empty = (
        frame.selectExpr("*", "unix_micros(at) micros", "cast(local as string) clock")
        .orderBy("offset")
        .drop("at", "local")
        .collect()
    )
    assert full.asDict(recursive=True) == {
        "offset": 0,
        "id": 2**63 - 1,
        "flag": True,
        "t": -128,
        "s": 32767,
        "i": -(2**31),
        "f": 0.5,
        "d": 1e300,
        "name": "é",
        "raw": b"\0\1\xff",
        "day": date(1066, 10, 14),
        "micros": int(datetime(2026, 11, 23, 8, tzinfo=UTC).timestamp()) * 10**6 + 123456,
        "clock": "2026-11-23 10:00:00",
        "price": Decimal("123456789012345678.90"),
        "tags": ["a", None],
        "odd, `name": {"k": [1]},
        "place": {"lat": -1.0, "in side": {"n": 7}},
        "event": "e",
    }
    assert set(empty.asDict().values()) == {len(GOOD) + 8, None}


def test_a_bad_record_fails_the_read_with_its_place(load: Load, store: StoreDouble) -> None:
    store.stream.append(0.6, b'{"id":1}')
    store.stream.append(0.6, BAD)
    with pytest.raises(Exception, match=r"event at offset 16 of segment 1 of .* field 'id'.*on_bad_record=column"):
        load(event_schema="id bigint").collect()


@either_form
def test_bad_records_are_in_a_column_with_reasons(load: Load, store: StoreDouble) -> None:
    for event in (b'{"id":1}', BAD, b"\xff", b'{"id":2}'):
        store.stream.append(0.1, event)
    frame = load(event_schema="id bigint", on_bad_record="column", corrupt_column="Broken", columns="event,offset")
    rows = [tuple(row) for row in frame.orderBy("offset").collect()]
    assert [(row[0], row[1]) for row in rows] == [(1, None), (None, BAD), (None, b"\xff"), (2, None)]
    assert [row[2] for row in rows] == [
        None,
        "field 'id': there is a number with a fraction or an exponent in the place of a whole number (bigint)",
        "it is not UTF-8: invalid start byte at byte 0",
        None,
    ]
    assert [row.id for row in good_records(frame, corrupt_column="Broken").collect()] == [1, 2]


def test_bad_records_can_be_skipped(load: Load, store: StoreDouble) -> None:
    for event in (BAD, b'{"id":1}', BAD, b'{"id":2}'):
        store.stream.append(0.1, event)
    store.stream.append(0.6, BAD)
    rows = load(event_schema="id bigint", on_bad_record="skip", columns="event,offset").collect()
    assert [tuple(row) for row in rows] == [(1, len(BAD) + 8), (2, 2 * len(BAD) + 32)]


def test_a_dead_letter_can_be_read_with_its_schema(load: Load, store: StoreDouble) -> None:
    store.stream.append(0.6, b'{"id":1}')
    store.stream.append(0.6, b"\xff\x00")
    frame = load(event_schema="id bigint", on_bad_record="column")
    (letter,) = dead_letters(frame).collect()
    assert letter.routing_key == f"{SCOPE}/{STREAM}/1"
    store.stream.append(0.1, letter.event.encode())
    (read,) = load(event_schema=LETTER, columns="event", on_bad_record="skip").where("reason is not null").collect()
    assert tuple(read) == (SCOPE, STREAM, 1, 16, "it is not UTF-8: invalid start byte at byte 0", 2, b"\xff\x00")


def test_options_of_dead_letters_are_checked_at_once() -> None:
    with pytest.raises(InvalidRequestError, match="option 'stream': it is required"):
        with_dead_letters(lambda rows, batch_id: None, {"controller": "http://127.0.0.1:1", "scope": "s"})


def test_rows_without_bad_columns_are_refused(load: Load) -> None:
    rows = load(event_schema="id bigint")
    for function in (dead_letters, good_records):
        with pytest.raises(InvalidRequestError, match=r"no column '_corrupt': read with .*on_bad_record=column"):
            function(rows)

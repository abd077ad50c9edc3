"""A replay copies the events of a time range once, and the report counts the values of their fields."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from job_files_in_memory import FilesInMemory
from sink_world import forget_last_commit

from glue_jobs import replay, report
from headrace.client import ScalingPolicy
from headrace.client.headrace import Headrace
from headrace.model.errors import InvalidRequestError, NotFoundError
from headrace.spark.jobs.batch_table import read_table
from headrace.spark.jobs.time_ranges import parse_time, recorded_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]
START = datetime(2026, 11, 23, 10, tzinfo=UTC)


@pytest.mark.parametrize("text", ["yesterday", "2026-11-23T10:00:00", ""])
def test_a_time_needs_its_zone(text: str):
    with pytest.raises(InvalidRequestError, match="time"):
        parse_time(text)
    assert parse_time("2026-11-23T10:00:00Z") == START


def test_the_range_of_a_replay_is_resolved_once(headrace_client: Headrace, headrace_scope: str):
    headrace_client.admin.create_stream(headrace_scope, "orders", scaling=ScalingPolicy.fixed(1))
    files, until = FilesInMemory(), datetime.now(UTC) + timedelta(hours=1)

    def resolved(end: datetime):
        return recorded_range(headrace_client, files, "d/replay.json", headrace_scope, "orders", START, end)

    first = resolved(until)
    with headrace_client.writer(headrace_scope, "orders") as writer:
        writer.write(b"later than the first run", "key")
    assert resolved(until) == first
    with pytest.raises(InvalidRequestError, match="of another replay"):
        resolved(until + timedelta(1))
    with pytest.raises(InvalidRequestError, match="not after the start"):
        resolved(START)


def test_a_replay_keeps_its_target(headrace_client: Headrace, headrace_scope: str):
    headrace_client.admin.create_stream(headrace_scope, "orders", scaling=ScalingPolicy.fixed(1))
    files, until = FilesInMemory(), datetime.now(UTC) + timedelta(hours=1)

    def resolved(target: Mapping[str, str | None]):
        return recorded_range(headrace_client, files, "d/replay.json", headrace_scope, "orders", START, until, target)

    first = resolved({"to stream": "shop/copy", "key field": None})
    assert resolved({"to stream": "shop/copy"}) == first
    for other in ({}, {"to stream": "shop/other"}, {"to stream": "shop/copy", "key field": "customer"}):
        with pytest.raises(InvalidRequestError, match=r"of another replay \(.*to stream shop/copy"):
            resolved(other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either --output or --target_stream"),
        ({"output": "d", "target_stream": "copy"}, "either --output or --target_stream"),
        ({"output": "d", "key_field": "customer"}, "--key_field needs --target_stream"),
        ({"output": "d", "target_scope": "other"}, "--target_scope needs --target_stream"),
        ({"target_stream": "orders"}, "the target is the stream itself, shop/orders"),
    ],
)
def test_a_replay_has_one_target(arguments: dict[str, str], message: str):
    where = {"controller": "http://127.0.0.1:1", "scope": "shop", "stream": "orders", "checkpoint": "d"}
    times = {"from": "2026-11-23T10:00:00Z", "to": "2026-11-23T11:00:00Z"}
    no_session: Any = None
    with pytest.raises(InvalidRequestError, match=message):
        replay.run(no_session, {**where, **times, **arguments})


class TestOnSpark:
    pytestmark = SPARK

    def test_events_between_two_times_are_copied_once(
        self, spark: SparkSession, headrace_client: Headrace, headrace_url: str, headrace_scope: str, tmp_path: Path
    ):
        headrace_client.admin.create_stream(headrace_scope, "orders", scaling=ScalingPolicy.fixed(2))
        times = []
        with headrace_client.writer(headrace_scope, "orders") as writer:
            for group in range(3):
                events = [json.dumps({"group": group, "number": number}).encode() for number in range(20)]
                writer.write_batch(events, [f"key {number}" for number in range(20)])
                writer.flush()
                time.sleep(0.02)  # the order of stores' clocks is in milliseconds
                times.append(datetime.now(UTC).isoformat())
        where: dict[str, str | None] = {"controller": headrace_url, "scope": headrace_scope, "stream": "orders"}
        between = {"from": times[0], "to": times[1]}
        paths = {"checkpoint": str(tmp_path / "checkpoint"), "output": str(tmp_path / "copy")}
        assert replay.run(spark, {**where, **between, **paths}) == replay.Replayed(20)
        assert replay.run(spark, {**where, **between, **paths}) == replay.Replayed(0)
        rows = read_table(spark, str(tmp_path / "copy"), "rows").collect()
        copied = [json.loads(row["event"]) for row in rows]
        assert sorted((row["group"], row["number"]) for row in copied) == [(1, number) for number in range(20)]
        page = report.run(
            spark, {**where, **between, "field": "group", "intervals": "2", "output": str(tmp_path / "report.html")}
        )
        assert (tmp_path / "report.html").read_text() == page
        assert "<td>1</td><td>20</td><td>100.0%</td>" in page

    @pytest.mark.nightly
    def test_events_between_two_times_go_to_a_stream_once(
        self, spark: SparkSession, headrace_client: Headrace, headrace_url: str, headrace_scope: str, tmp_path: Path
    ):
        """In the order of each customer, although the source was scaled; those without one in that of their segment."""
        admin = headrace_client.admin
        admin.create_stream(headrace_scope, "orders", scaling=ScalingPolicy.fixed(2))
        admin.create_stream(headrace_scope, "copy", scaling=ScalingPolicy.fixed(3))
        odd = [b"no object", b'{"customer": null}', b'{"customer": "a", "customer": "b"}', b"\xff", b'{"n": 1}']
        start = datetime.now(UTC).isoformat()
        with headrace_client.writer(headrace_scope, "orders") as writer:
            for group in range(2):
                for number in range(60):
                    order = {"customer": f"c{number % 7}", "number": 60 * group + number}
                    writer.write(json.dumps(order).encode(), f"c{number % 7}")
                for event in odd:
                    writer.write(b"%d " % group + event if event[:1] != b"{" else event, "odd")
                writer.flush()
                sealed = [segment.segment_id for segment in admin.segments(headrace_scope, "orders")]
                admin.scale_stream(headrace_scope, "orders", seal=sealed, ranges=[(0.0, 0.4), (0.4, 0.6), (0.6, 1.0)])
        time.sleep(0.02)  # the order of stores' clocks is in milliseconds
        arguments: dict[str, str | None] = {"controller": headrace_url, "scope": headrace_scope, "stream": "orders"}
        arguments |= {"from": start, "to": datetime.now(UTC).isoformat(), "approx_bytes_per_trigger": "2500"}
        arguments |= {"checkpoint": str(tmp_path / "checkpoint"), "target_stream": "copy", "key_field": "customer"}
        assert replay.run(spark, arguments) == replay.Replayed(130, without_field=10)
        tail = admin.stream_cut(headrace_scope, "copy", at="latest")
        assert forget_last_commit(tmp_path / "checkpoint" / "progress") > 0, "there were several batches"
        assert replay.run(spark, arguments) == replay.Replayed(0)
        assert admin.stream_cut(headrace_scope, "copy", at="latest") == tail
        with headrace_client.reader(headrace_scope, "copy", start="earliest", end=tail) as reader:
            copied = [read.event for read in reader]
        orders = [json.loads(event) for event in copied if b"number" in event]
        for customer in range(7):
            numbers = [order["number"] for order in orders if order["customer"] == f"c{customer}"]
            assert numbers == [60 * group + number for group in range(2) for number in range(customer, 60, 7)]
        others = sorted(event for event in copied if b"number" not in event)
        assert others == sorted([b"0 no object", b"1 no object", b"0 \xff", b"1 \xff"] + 2 * [odd[1], odd[2], odd[4]])

    @pytest.mark.nightly
    def test_without_a_field_the_order_of_segments_is_kept(
        self, spark: SparkSession, headrace_client: Headrace, headrace_url: str, headrace_scope: str, tmp_path: Path
    ):
        admin = headrace_client.admin
        admin.create_stream(headrace_scope, "orders", scaling=ScalingPolicy.fixed(3))
        admin.create_scope(f"{headrace_scope}-other")
        admin.create_stream(f"{headrace_scope}-other", "copy", scaling=ScalingPolicy.fixed(2))
        start = datetime.now(UTC).isoformat()
        with headrace_client.writer(headrace_scope, "orders") as writer:
            for number in range(300):
                writer.write(b"%d" % number, str(number % 11))
        time.sleep(0.02)  # the order of stores' clocks is in milliseconds
        arguments: dict[str, str | None] = {"controller": headrace_url, "scope": headrace_scope, "stream": "orders"}
        arguments |= {"from": start, "to": datetime.now(UTC).isoformat(), "approx_bytes_per_trigger": "1500"}
        arguments |= {"checkpoint": str(tmp_path / "checkpoint"), "target_stream": "copy"}
        with pytest.raises(NotFoundError):
            replay.run(spark, arguments)
        arguments["target_scope"] = f"{headrace_scope}-other"
        assert replay.run(spark, arguments) == replay.Replayed(300)
        copies: dict[str, list[int]] = {}
        with headrace_client.reader(f"{headrace_scope}-other", "copy", start="earliest") as reader:
            for read in islice(reader, 300):
                copies.setdefault(str(int(read.event) % 11), []).append(int(read.event))
        assert copies == {str(key): list(range(key, 300, 11)) for key in range(11)}

"""Metadata tables through a real Spark session, on the local stack: the same rows on every version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sink_world import SinkWorld, forget_last_commit

from headrace.client import GroupStream, ReaderGroupConfiguration, RetentionPolicy, ScalingPolicy
from headrace.client.administration import admin as client_admin
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.spark import has_data_source, read_batch, read_stream, register, run_until_caught_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]

EVENT = bytes(92)
FRAME_BYTES = 100
POLICY_MS = 86_400_000

Table = Callable[..., list[dict[str, Any]]]


@pytest.fixture(params=["data source", pytest.param("function", marks=pytest.mark.nightly)])
def table(spark: SparkSession, world: SinkWorld, request: pytest.FixtureRequest) -> Table:
    """The rows of a table, with the data source and with the function."""
    if request.param == "data source":
        pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")
        register(spark)

    def rows(name: str, **options: str) -> list[dict[str, Any]]:
        given = {"controller": world.url, "scope": world.scope, "metadata": name} | options
        if request.param == "function":
            frame: DataFrame = read_batch(spark, given)
        else:
            frame = spark.read.format("headrace").options(**given).load()
        return [row.asDict() for row in frame.collect()]

    return rows


def write(world: SinkWorld, stream: str, events: int) -> None:
    with world.client.writer(world.scope, stream) as writer:
        writer.write_batch([EVENT] * events, [str(number) for number in range(events)])


def text_at(world: SinkWorld, stream: str, at: Any) -> str:
    return stream_cut_text(world.client.admin.stream_cut(world.scope, stream, at=at))


def test_streams_are_listed_with_tags_in_pages(table: Table, world: SinkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    assert table("Streams") == []
    monkeypatch.setattr(client_admin, "PAGE_ITEMS_MAX", 2)  # for the function only
    for name, tags in (("b", ("raw",)), ("a", ("raw", "eu")), ("ab", ())):
        world.client.admin.create_stream(world.scope, name, tags=tags)
    found = table("Streams")
    assert [row["stream_name"] for row in found] == ["a", "ab", "b"]
    assert found[0] == {"scope_name": world.scope, "stream_name": "a", "tags": ["eu", "raw"]}
    assert [row["stream_name"] for row in table("streams", stream_pattern="a.*")] == ["a", "ab"]
    assert [row["stream_name"] for row in table("STREAMS", stream="b, ab")] == ["ab", "b"]


def test_information_has_the_cuts_and_policies(table: Table, world: SinkWorld) -> None:
    admin = world.client.admin
    scaling, retention = ScalingPolicy.by_event_rate(100, 2, 2), RetentionPolicy.by_time(POLICY_MS)
    admin.create_stream(world.scope, "a", scaling=scaling, retention=retention, tags=("raw",))
    admin.create_stream(world.scope, "b")
    write(world, "a", 10)
    cut = admin.stream_cut(world.scope, "a")
    admin.truncate_stream(world.scope, "a", cut)
    write(world, "a", 10)
    first, second = table("StreamInfo", stream="a,b")
    assert list(first)[:2] == ["head_stream_cut", "tail_stream_cut"], "as in Pravega's connector"
    assert first["head_stream_cut"] == stream_cut_text(cut)
    assert first["tail_stream_cut"] == text_at(world, "a", "latest")
    view = admin.get_stream(world.scope, "a")
    assert (first["state"], first["epoch"], first["segments"], first["tags"]) == ("ACTIVE", 0, 2, ["raw"])
    assert first["creation_time_ms"] == view.creation_time_ms
    assert json.loads(first["scaling_policy"])["targetRate"] == 100
    assert json.loads(first["retention_policy"])["value"] == 1
    assert (second["stream_name"], second["retention_policy"]) == ("b", None)


def test_segments_have_their_ranges_and_bytes(table: Table, world: SinkWorld) -> None:
    admin = world.client.admin
    admin.create_stream(world.scope, "a", scaling=ScalingPolicy.fixed(2))
    write(world, "a", 40)
    cut = admin.stream_cut(world.scope, "a")
    head = {segment: offset // 2 // FRAME_BYTES * FRAME_BYTES for segment, offset in cut.offsets.items()}
    admin.truncate_stream(world.scope, "a", head)
    (low, *_) = admin.segments(world.scope, "a")
    admin.scale_stream(world.scope, "a", seal=[low.segment_id], ranges=[(0.0, 0.25), (0.25, 0.5)])
    write(world, "a", 40)
    found = {row["segment_id"]: row for row in table("Segments", stream="a")}
    tail = admin.stream_cut(world.scope, "a").offsets
    assert {row["segment_id"] for row in found.values() if not row["is_sealed"]} == set(tail)
    for identifier, row in found.items():
        assert row["tail_offset"] == tail.get(identifier, cut.offsets.get(identifier))
        assert row["head_offset"] == head.get(identifier, 0)
        assert row["bytes"] == row["tail_offset"] - row["head_offset"]
    assert sorted((row["key_range_low"], row["key_range_high"]) for row in found.values()) == [
        (0.0, 0.25), (0.0, 0.5), (0.25, 0.5), (0.5, 1.0)
    ]  # fmt: skip
    assert sum(row["bytes"] for row in found.values()) == 80 * FRAME_BYTES - sum(head.values())
    admin.seal_stream(world.scope, "a")
    assert all(row["is_sealed"] for row in table("Segments", stream="a"))


def test_a_lag_counts_from_a_cut(table: Table, world: SinkWorld) -> None:
    admin = world.client.admin
    admin.create_stream(world.scope, "a", scaling=ScalingPolicy.fixed(2))
    write(world, "a", 20)
    cut = stream_cut_text(admin.stream_cut(world.scope, "a"))
    rows = table("Lag", stream="a", start_stream_cut=cut)
    assert [row["bytes_behind"] for row in rows] == [0, 0], "a reader that has caught up has rows"
    admin.scale_stream(world.scope, "a", seal=[0, 1], ranges=[(0.0, 0.3), (0.3, 1.0)])
    write(world, "a", 30)
    rows = table("Lag", stream="a", start_stream_cut=cut)
    assert sum(row["bytes_behind"] for row in rows) == 30 * FRAME_BYTES
    assert len(rows) == 4
    admin.truncate_stream(world.scope, "a", admin.stream_cut(world.scope, "a"))
    write(world, "a", 5)
    rows = table("Lag", stream="a", start_stream_cut=cut)
    assert sum(row["bytes_behind"] for row in rows) == 5 * FRAME_BYTES
    assert sum(row["bytes_lost"] for row in rows) == 30 * FRAME_BYTES, "truncated before they were read"
    assert {row["scope_name"] for row in rows} == {world.scope}


def test_a_lag_counts_from_a_reader_group(table: Table, world: SinkWorld) -> None:
    client = world.client
    for name in ("a", "b"):
        client.admin.create_stream(world.scope, name, scaling=ScalingPolicy.fixed(1))
        write(world, name, 10)
    streams = tuple(GroupStream(world.scope, name) for name in ("a", "b"))
    client.admin.reader_groups.create(world.scope, "g", ReaderGroupConfiguration(streams))
    with client.reader_group(world.scope, "g") as group:
        before = table("Lag", reader_group="g")
        assert [(row["stream_name"], row["bytes_behind"]) for row in before] == [("a", 1000), ("b", 1000)]
        assert group.lag().bytes_unread == 2000
    assert [row["stream_name"] for row in table("Lag", reader_group="g", stream="b")] == ["b"]
    with pytest.raises(Exception, match="no_such"):
        table("Lag", reader_group="no_such")


class Reading:
    """A query that has read the stream, on any Spark, and the options of its lag."""

    def __init__(self, spark: SparkSession, world: SinkWorld, directory: Path, form: str) -> None:
        self.spark, self.world, self.checkpoint = spark, world, directory / "checkpoint"
        self.plans = None if form == "data source" else str(self.checkpoint / "plans")

    def run(self) -> None:
        where = {"controller": self.world.url, "scope": self.world.scope, "stream": "a", "start_stream_cut": "earliest"}
        run_until_caught_up(
            self.spark,
            where,
            lambda events: events.writeStream.format("noop").option("checkpointLocation", str(self.checkpoint)),
            plans=self.plans,
        )

    @property
    def options(self) -> dict[str, str]:
        given = {"checkpoint_location": str(self.checkpoint)}
        return given if self.plans is None else given | {"plans": self.plans}


@pytest.fixture
def reading(table: Table, spark: SparkSession, world: SinkWorld, tmp_path: Path, request: Any) -> Reading:
    world.client.admin.create_stream(world.scope, "a", scaling=ScalingPolicy.fixed(2))
    write(world, "a", 20)
    return Reading(spark, world, tmp_path, request.node.callspec.params["table"])


@pytest.mark.nightly
def test_a_lag_counts_from_a_checkpoint(table: Table, world: SinkWorld, reading: Reading) -> None:
    with pytest.raises(Exception, match="no batch is finished in the checkpoint"):
        table("Lag", **reading.options)
    reading.run()
    write(world, "a", 7)
    rows = table("Lag", **reading.options)
    assert sum(row["bytes_behind"] for row in rows) == 7 * FRAME_BYTES
    assert {row["stream_name"] for row in rows} == {"a"}
    reading.run()
    assert sum(row["bytes_behind"] for row in table("Lag", **reading.options)) == 0
    forget_last_commit(reading.checkpoint)
    rows = table("Lag", **reading.options)
    assert sum(row["bytes_behind"] for row in rows) == 7 * FRAME_BYTES, "the last batch is not finished"
    with pytest.raises(Exception, match="does not read"):
        table("Lag", stream="b", **reading.options)


REFUSED: list[tuple[dict[str, str], str]] = [
    ({"metadata": "Topics"}, "there is no table 'Topics'; there are Streams, StreamInfo, Segments, Lag"),
    ({"metadata": "Streams", "columns": "event"}, "option 'columns'"),
    ({"metadata": "StreamInfo"}, "option 'stream': it is required"),
    ({"metadata": "Segments", "reader_group": "g"}, "option 'reader_group'"),
    ({"metadata": "Lag", "stream": "a"}, "give one of start_stream_cut, checkpoint_location, reader_group, not 0"),
    ({"metadata": "Lag", "reader_group": "g", "checkpoint_location": "/tmp"}, "not 2"),
    ({"metadata": "Lag", "reader_group": "g", "plans": "/tmp"}, "it needs checkpoint_location"),
    ({"metadata": "Lag", "checkpoint_location": "hdfs://host/there"}, "neither a directory of this machine nor"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_is_not_known_is_refused(table: Table, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        table(options["metadata"], **{name: value for name, value in options.items() if name != "metadata"})


def test_a_table_is_no_streaming_source(spark: SparkSession, world: SinkWorld, tmp_path: Path) -> None:
    given = {"controller": world.url, "scope": world.scope, "metadata": "Streams", "stream": "a"}
    with pytest.raises(InvalidRequestError, match="can only be read as a batch"):
        read_stream(spark, given, plans=str(tmp_path / "plans"))
    if has_data_source(spark):
        register(spark)
        frame = spark.readStream.format("headrace").options(**given).load()
        writing = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        with pytest.raises(Exception, match="can only be read as a batch"):
            writing.start().processAllAvailable()

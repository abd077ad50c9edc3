"""Bad input through a real Spark session, in batches and queries: one clear error, no endless retry, nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sink_world import SinkWorld
from spark_store_double import SCOPE, STREAM, RefusedError, StoreDouble, cut_text

from headrace.adapters.tcp.listener import bind_socket
from headrace.spark import read_batch, register, run_until_caught_up, write_batch, write_events
from headrace.spark.options import TIME_MS_MIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]

BATCH, QUERY, BATCH_FUNCTION, QUERY_FUNCTION = "batch", "query", "batch function", "query function"
EVENTS = 20
FUTURE = "2999-01-01T00:00:00Z"


class Form:
    """One of the ways to read. The events of a query are those that its sink got, from all runs."""

    def __init__(self, spark: SparkSession, directory: Path, form: str) -> None:
        self.spark, self.form = spark, form
        self.checkpoint, self.plans = str(directory / "checkpoint"), str(directory / "plans")
        self.events: list[Any] = []

    def read(self, **options: str) -> list[Any]:
        """The events of one run."""
        self.events = []
        if self.form == BATCH:
            return self.spark.read.format("headrace").options(**options).load().collect()
        if self.form == BATCH_FUNCTION:
            return read_batch(self.spark, options).collect()
        if self.form == QUERY_FUNCTION:
            run_until_caught_up(self.spark, options, self.writing, plans=self.plans)
            return self.events
        query = self.started(**options)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return self.events

    def started(self, **options: str) -> StreamingQuery:
        return self.writing(self.spark.readStream.format("headrace").options(**options).load()).start()

    def writing(self, events: DataFrame) -> DataStreamWriter:
        return events.writeStream.foreachBatch(self._take).option("checkpointLocation", self.checkpoint)

    def _take(self, events: DataFrame, batch_id: int) -> None:
        self.events += events.collect()


def form_of(spark: SparkSession, directory: Path, form: str) -> Form:
    if form in (BATCH, QUERY):
        pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")
        register(spark)
    return Form(spark, directory, form)


def in_the_night(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.fixture(params=[BATCH, *map(in_the_night, (QUERY, BATCH_FUNCTION, QUERY_FUNCTION))])
def form(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Form:
    return form_of(spark, tmp_path, request.param)


@pytest.fixture(params=[*map(in_the_night, (QUERY, QUERY_FUNCTION))])
def query(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Form:
    return form_of(spark, tmp_path, request.param)


def where(store: StoreDouble, **options: str) -> dict[str, str]:
    here = {"controller": store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}
    return here | {"idle_poll_ms": "20"} | options


def fill(store: StoreDouble, events: int = EVENTS, time_ms: int = 0) -> None:
    for number in range(events):
        store.stream.append(number % 2 / 2, b"%012d" % number, time_ms)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"start_stream_kut": "latest"}, "did you mean 'start_stream_cut'"),
        ({"start_stream_cut": cut_text({0: 0, 1: 0}, "others")}, "one of weather/others, not of weather/stations"),
    ],
    ids=["unknown option", "cut of another stream"],
)
def test_wrong_options_cost_no_request(form: Form, store: StoreDouble, wrong: dict[str, str], message: str) -> None:
    fill(store)
    with pytest.raises(Exception, match=message):
        form.read(**where(store, **wrong))
    assert store.requests.total() == 0


@pytest.mark.parametrize(
    "refusal",
    [
        RefusedError(403, "unauthorized", "the security token included in the request is expired"),
        in_the_night(RefusedError(401, "unauthorized", "there is no such key")),
        in_the_night(RefusedError(404, "not_found", "there is no stream weather/stations")),
    ],
    ids=["expired", "unknown", "deleted"],
)
def test_what_the_controller_refuses_is_said_at_once(form: Form, store: StoreDouble, refusal: RefusedError) -> None:
    fill(store)
    store.gone = refusal
    with pytest.raises(Exception, match=str(refusal)):
        form.read(**where(store))
    assert store.requests.total() <= 4, "nothing is repeated"
    store.gone = None
    assert len(form.read(**where(store))) == EVENTS, "nothing is lost"


def test_text_that_is_none_is_named_by_its_offset(form: Form, store: StoreDouble) -> None:
    store.stream.append(0.1, b"fine")
    store.stream.append(0.1, b"\xff\xfe")
    with pytest.raises(Exception, match="event at offset 12 is not UTF-8 text"):
        form.read(**where(store, event_format="text"))
    assert len(form.read(**where(store))) == 2, "as binary, with the same checkpoint"


@pytest.mark.parametrize(
    ("start", "end", "events"),
    [
        in_the_night("2001-01-01T00:00:00Z", FUTURE, 2 * EVENTS),
        ("2001-01-01T00:00:01.5Z", FUTURE, EVENTS),
        (FUTURE, FUTURE, 0),
        in_the_night("earliest", "2001-01-01T00:00:00Z", 0),
    ],
    ids=["before the head", "between", "in the future", "before all"],
)
def test_times_outside_of_the_stream_are_its_ends(
    form: Form, store: StoreDouble, start: str, end: str, events: int
) -> None:
    fill(store, time_ms=TIME_MS_MIN + 1000)
    fill(store, time_ms=TIME_MS_MIN + 2000)
    options = where(store, start_stream_cut=start, end_stream_cut=end)
    if form.form == QUERY and end == FUTURE:  # the query runs on, and would have to stop there
        with pytest.raises(Exception, match="cannot be in the future"):
            form.read(**options)
    else:
        assert len(form.read(**options)) == events


def test_an_end_before_the_checkpoint_is_nothing_to_do(query: Form, store: StoreDouble) -> None:
    fill(store)
    end = cut_text(store.stream.tail())
    fill(store)
    assert len(query.read(**where(store))) == 2 * EVENTS
    fill(store)
    assert query.read(**where(store, end_stream_cut=end)) == []
    assert len(query.read(**where(store))) == EVENTS


def test_links_that_expired_are_renewed(form: Form, store: StoreDouble) -> None:
    fill(store)
    store.refuse("object", 403, times=2)
    assert len(form.read(**where(store))) == EVENTS


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which none listens, and which no other process gets."""
    with closing(bind_socket("127.0.0.1", 0)) as closed:
        yield closed.getsockname()[1]


def test_a_controller_that_is_not_there_is_said(form: Form, closed_port: int) -> None:
    url = f"http://127.0.0.1:{closed_port}"
    options = {"controller": url, "scope": SCOPE, "stream": STREAM, "patience_s": "1"}
    with pytest.raises(Exception, match=f"the controller at {url} does not answer"):
        form.read(**options)


class Recreated:
    """A stream on the local stack whose name is used again."""

    def __init__(self, world: SinkWorld) -> None:
        self.world = world
        self.options = {"controller": world.url, "scope": world.scope, "stream": "in", "start_stream_cut": "earliest"}
        world.fill("in", 0, EVENTS)

    def delete(self) -> None:
        self.world.client.admin.seal_stream(self.world.scope, "in")
        self.world.client.admin.delete_stream(self.world.scope, "in")


@pytest.fixture
def recreated(world: SinkWorld) -> Recreated:
    return Recreated(world)


def test_a_stream_of_another_time_is_not_read_on(query: Form, recreated: Recreated, tmp_path: Path) -> None:
    assert len(query.read(**recreated.options)) == EVENTS
    recreated.delete()
    with pytest.raises(Exception, match="there is no stream"):
        query.read(**recreated.options)
    recreated.world.fill("in", 0, 7)
    with pytest.raises(Exception, match="created again"):
        query.read(**recreated.options)
    assert query.events == [], "nothing of the new stream is taken for the old one"
    assert len(form_of(query.spark, tmp_path / "new", query.form).read(**recreated.options)) == 7


@pytest.mark.parametrize("created", [False, in_the_night(True)])
def test_a_running_query_ends_with_its_stream(
    spark: SparkSession, recreated: Recreated, tmp_path: Path, created: bool
) -> None:
    form = form_of(spark, tmp_path, QUERY)
    running = form.started(**recreated.options)
    try:
        running.processAllAvailable()
        recreated.delete()
        if created:
            recreated.world.fill("in", 0, 7)
        with pytest.raises(Exception, match=r"there is no stream|created again"):
            running.awaitTermination()
    finally:
        running.stop()
    assert len(form.events) == EVENTS


Write = Callable[["SparkSession", dict[str, str]], None]


def with_the_format(spark: SparkSession, options: dict[str, str]) -> None:
    pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")
    register(spark)
    rows(spark, options).write.format("headrace").mode("append").options(**target(options)).save()


def with_the_function(spark: SparkSession, options: dict[str, str]) -> None:
    write_events(rows(spark, options), target(options))


def in_a_query(spark: SparkSession, options: dict[str, str]) -> None:
    """`write_batch` in `foreachBatch`."""
    directory = Path(options["directory"])
    (directory / "in").mkdir()
    (directory / "in" / "0.txt").write_text("one\n")
    source = spark.readStream.text(str(directory / "in")).selectExpr(options.get("select", "value event"))

    def write(batch: DataFrame, batch_id: int) -> None:
        write_batch(batch, batch_id, target(options))

    query = source.writeStream.foreachBatch(write).option("checkpointLocation", str(directory / "checkpoint")).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def rows(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.range(3).selectExpr(options.get("select", "cast(id as string) event"))


def target(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in ("select", "directory")}


@pytest.mark.parametrize("write", [with_the_format, *map(in_the_night, (with_the_function, in_a_query))])
def test_what_cannot_be_written_is_said_and_not_written(
    spark: SparkSession, world: SinkWorld, closed_port: int, tmp_path: Path, write: Write
) -> None:
    unknown = world.options | {"allow_create_stream": "false", "directory": str(tmp_path)}
    with pytest.raises(Exception, match=r"there is no stream .*/out: create it"):
        write(spark, unknown)
    world.fill("out", 0, 5)
    (tmp_path / "null").mkdir()
    null = world.options | {"select": "cast(null as string) event", "directory": str(tmp_path / "null")}
    with pytest.raises(Exception, match="null in the column 'event'"):
        write(spark, null)
    assert len(world.events()) == 5
    world.wait_until_open([])
    (tmp_path / "away").mkdir()
    url = f"http://127.0.0.1:{closed_port}"
    away = world.options | {"controller": url, "patience_s": "1", "directory": str(tmp_path / "away")}
    with pytest.raises(Exception, match=f"the controller at {url} does not answer"):
        write(spark, away)

"""Several streams in one read: named, or found by a pattern also when they are new."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble, cut_text
from spark_stream_double import StreamDouble

from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.spark.client_access import ClientStreamAccess
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import read_options
from headrace.spark.partitions import Partition
from headrace.spark.plans import open_plans
from headrace.spark.task_reads import read_partition

FRAME_BYTES = 20


@pytest.fixture
def store(store: StoreDouble) -> StoreDouble:
    """The streams "stations" and "ships" with 20 events each, and "other"."""
    store.streams["ships"] = StreamDouble([(0.0, 1.0)])
    store.streams["_states"] = StreamDouble([(0.0, 1.0)])
    store.streams["other"] = StreamDouble([(0.0, 1.0)])
    for name in (STREAM, "ships", "other"):
        fill(store, name, 20)
    return store


def fill(store: StoreDouble, name: str, events: int) -> None:
    for number in range(events):
        store.streams[name].append(number % 2 / 2, bytes(FRAME_BYTES - 8))


class Query:
    def __init__(self, store: StoreDouble, **options: str) -> None:
        where = {"controller": store.url, "scope": SCOPE, "start_stream_cut": "earliest", "idle_poll_ms": "1"}
        self.options = read_options(where | options)
        self.batches = MicroBatches(self.options, monotonic_s=iter(range(10**6)).__next__)

    def read(self, partitions: list[Partition]) -> Counter[str]:
        found: Counter[str] = Counter()
        for partition in partitions:
            for batch in read_partition(self.options, partition):
                found.update(batch.column("stream").to_pylist())
        return found


@pytest.fixture
def named(store: StoreDouble) -> Iterator[Query]:
    query = Query(store, stream=f"{STREAM}, ships")
    yield query
    query.batches.close()


@pytest.fixture
def matching(store: StoreDouble) -> Iterator[Query]:
    query = Query(store, stream_pattern=".*s.*s")
    yield query
    query.batches.close()


def test_named_streams_are_read_together(named: Query) -> None:
    start = named.batches.initial()
    end = named.batches.latest(start, None)
    assert named.read(named.batches.partitions(start, end)) == {STREAM: 20, "ships": 20}
    assert named.batches.latest(end, None) == end


def test_streams_share_the_budget(named: Query, store: StoreDouble) -> None:
    fill(store, "ships", 40)
    start = named.batches.initial()
    end = named.batches.latest(start, 20 * FRAME_BYTES)
    assert named.read(named.batches.partitions(start, end)) == {STREAM: 10, "ships": 10}
    last = named.batches.latest(end, 40 * FRAME_BYTES)
    assert named.read(named.batches.partitions(end, last)) == {STREAM: 10, "ships": 30}


def test_a_logged_batch_of_several_streams_is_planned_again(named: Query, store: StoreDouble) -> None:
    start = named.batches.initial()
    end = named.batches.latest(start, None)
    fill(store, STREAM, 10)
    again = Query(store, stream=f"{STREAM},ships")
    assert again.read(again.batches.partitions(start, end)) == {STREAM: 20, "ships": 20}
    again.batches.close()


def test_a_pattern_picks_up_new_streams(matching: Query, store: StoreDouble) -> None:
    offset = matching.batches.initial()
    seen: Counter[str] = Counter()
    for _ in range(2):
        end = matching.batches.latest(offset, None)
        seen += matching.read(matching.batches.partitions(offset, end))
        offset = end
    assert seen == {STREAM: 20, "ships": 20}
    store.streams["sensors"] = StreamDouble([(0.0, 1.0)])
    fill(store, "sensors", 7)
    for _ in range(2):
        end = matching.batches.latest(offset, None)
        seen += matching.read(matching.batches.partitions(offset, end))
        offset = end
    assert seen == {STREAM: 20, "ships": 20, "sensors": 7}


def test_a_stream_is_added_to_a_checkpoint_of_one(store: StoreDouble) -> None:
    checkpoint = cut_text(store.stream.tail())
    query = Query(store, stream=f"{STREAM},ships")
    found = query.batches.latest(checkpoint, None)
    last = query.batches.latest(found, None)
    assert query.read(query.batches.partitions(checkpoint, found)) == {}
    assert query.read(query.batches.partitions(found, last)) == {"ships": 20}
    query.batches.close()


def test_the_end_of_several_streams_is_frozen(named: Query, store: StoreDouble) -> None:
    named.batches.end_now()
    for name in (STREAM, "ships"):
        fill(store, name, 10)
    start = named.batches.initial()
    end = named.batches.latest(start, None)
    assert named.read(named.batches.partitions(start, end)) == {STREAM: 20, "ships": 20}
    assert named.batches.latest(end, None) == end


def test_cuts_of_several_streams_are_given_together(store: StoreDouble) -> None:
    cuts = {STREAM: cut_text({0: 100, 1: 100}), "ships": cut_text({0: 300}, "ships")}
    query = Query(store, stream=f"{STREAM},ships", start_stream_cut=json.dumps(cuts))
    plans = open_plans(query.options)
    assert query.read(plans.batch_partitions()) == {STREAM: 10, "ships": 5}
    assert json.loads(plans.end_text()).keys() == {STREAM, "ships"}
    plans.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "a,a"}, "names a stream twice"),
        ({"stream": "a", "stream_pattern": "b"}, "either stream or stream_pattern"),
        ({"stream_pattern": "("}, "not a regular expression"),
        ({"stream_pattern": " "}, "option 'stream_pattern': .* cannot be empty"),
        ({"stream": "a,b", "start_stream_cut": cut_text({0: 1}, "a")}, "for several streams, cuts are given as"),
        ({"stream": "a,b", "start_stream_cut": json.dumps({"a": cut_text({0: 1}, "b")})}, "not of weather/a"),
        ({"stream": "a,b", "start_stream_cut": "{no json"}, "is not JSON"),
        ({"stream": "a,b", "start_stream_cut": '{"a":' * 100_000}, "is not JSON"),
        ({"stream": "a,b", "start_stream_cut": json.dumps({"A": cut_text({0: 1}, "A")})}, "a cut for 'A', which"),
    ],
)
def test_wrong_names_and_cuts_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_options({"controller": "http://127.0.0.1:1", "scope": SCOPE} | options)


def test_a_pattern_that_matches_nothing_yet_waits_for_streams(store: StoreDouble) -> None:
    query = Query(store, stream_pattern="sensors")
    offset = query.batches.initial()
    assert query.batches.latest(offset, None) == offset
    store.streams["sensors"] = StreamDouble([(0.0, 1.0)])
    fill(store, "sensors", 7)
    found = query.batches.latest(offset, None)
    assert query.read(query.batches.partitions(found, query.batches.latest(found, None))) == {"sensors": 7}
    query.batches.close()


def test_the_end_of_one_stream_does_not_depend_on_the_others(store: StoreDouble) -> None:
    end = json.dumps({"ships": cut_text({0: 100}, "ships")})
    query = Query(store, stream=f"{STREAM},ships", end_stream_cut=end)
    start = query.batches.initial()
    assert query.read(query.batches.partitions(start, query.batches.latest(start, None))) == {STREAM: 20, "ships": 5}
    query.batches.close()


def test_an_end_that_could_not_be_asked_for_holds(store: StoreDouble) -> None:
    """Plans of a query over manifests are made by one object, also after a failure and a new start."""
    query = Query(store, stream=f"{STREAM},ships", end_stream_cut="latest", patience_s="1")
    start = json.dumps({name: cut_text(store.streams[name].tail(), name) for name in (STREAM, "ships")})
    store.refuse("stream-cut", 503, times=1000)
    with pytest.raises(HeadraceError, match="as the test wants"):
        query.batches.latest(start, None)
    store.forgive()
    query.batches.latest(start, None)
    fill(store, "ships", 5)
    assert query.batches.latest(start, None) == start
    query.batches.close()


SHIPS_GONE = pytest.mark.parametrize("created_again", [False, True])


def delete_ships(store: StoreDouble, created_again: bool) -> None:
    del store.streams["ships"]
    if created_again:
        store.streams["ships"] = StreamDouble([(0.0, 1.0)], first_number=5)
        fill(store, "ships", 3)


@SHIPS_GONE
@pytest.mark.parametrize("restarted", [False, True])
def test_a_deleted_stream_of_a_pattern_is_skipped(
    store: StoreDouble, caplog: pytest.LogCaptureFixture, created_again: bool, restarted: bool
) -> None:
    """It is deleted while a batch that is logged is unfinished."""
    options = {"stream_pattern": ".*s.*s", "on_truncation": "skip"}
    query = Query(store, **options)
    start = query.batches.initial()
    end = query.batches.latest(start, None)
    delete_ships(store, created_again)
    if restarted:
        query.batches.close()
        query = Query(store, **options)
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        assert query.read(query.batches.partitions(start, end)) == {STREAM: 20}
    assert "event=spark_stream_skipped scope='weather' stream='ships'" in caplog.text
    seen: Counter[str] = Counter()
    for _ in range(3):
        following = query.batches.latest(end, None)
        seen += query.read(query.batches.partitions(end, following))
        end = following
    assert seen == ({"ships": 3} if created_again else {})
    query.batches.close()


@SHIPS_GONE
@pytest.mark.parametrize(
    "options", [{"stream_pattern": ".*s.*s"}, {"stream": f"{STREAM},ships", "on_truncation": "skip"}]
)
def test_a_deleted_stream_that_may_not_be_skipped_fails(
    store: StoreDouble, options: dict[str, str], created_again: bool
) -> None:
    query = Query(store, **options)
    start = query.batches.initial()
    end = query.batches.latest(start, None)
    delete_ships(store, created_again)
    with pytest.raises(HeadraceError, match=r"there is no stream|deleted and created again"):
        query.batches.partitions(start, end)
    query.batches.close()


def test_a_stream_that_is_deleted_while_planning_is_skipped(
    store: StoreDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"stream_pattern": ".*s.*s", "on_truncation": "skip"}
    query = Query(store, **options)
    start = query.batches.initial()
    end = query.batches.latest(start, None)
    again = Query(store, **options)
    planned = ClientStreamAccess.planned

    def deleted_first(*arguments: Any) -> Any:
        store.streams.pop("ships", None)
        return planned(*arguments)

    monkeypatch.setattr(ClientStreamAccess, "planned", deleted_first)
    assert again.read(again.batches.partitions(start, end)) == {STREAM: 20}
    for run in (query, again):
        run.batches.close()


def test_a_task_of_a_deleted_stream_of_a_pattern_goes_on(store: StoreDouble, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(store, stream_pattern=".*s.*s", on_truncation="skip")
    start = query.batches.initial()
    partitions = query.batches.partitions(start, query.batches.latest(start, None))
    store.stored = lambda segment: 0
    store.refuse("object", 403, times=1000)
    del store.streams["ships"]
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        assert query.read(partitions) == {STREAM: 20}
    assert "event=spark_stream_skipped scope='weather' stream='ships'" in caplog.text
    query.batches.close()

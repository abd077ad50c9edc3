"""Input that cannot be read: one clear error at once, or nothing to do; never an endless retry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from spark_store_double import SCOPE, STREAM, RefusedError, StoreDouble, cut_text

from headrace.model.errors import HeadraceError, InvalidRequestError, NotFoundError, UnauthorizedError
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import TIME_MS_MIN, read_options
from headrace.spark.plans import open_plans

FRAME_BYTES = 20


def fill(store: StoreDouble, events: int, time_ms: int = 0) -> None:
    for number in range(events):
        store.stream.append(number % 2 / 2, bytes(FRAME_BYTES - 8), time_ms)


@pytest.fixture
def where(store: StoreDouble) -> dict[str, str]:
    return {"controller": store.url, "scope": SCOPE, "stream": STREAM, "start_stream_cut": "earliest"}


@pytest.fixture
def batches(store: StoreDouble, where: dict[str, str]) -> Iterator[MicroBatches]:
    fill(store, 10)
    found = MicroBatches(read_options(where | {"patience_s": "60", "idle_poll_ms": "1"}))
    yield found
    found.close()


REFUSALS = [
    (RefusedError(404, "not_found", "there is no stream weather/stations"), NotFoundError),
    (RefusedError(400, "stream_recreated", "the stream was deleted and created again"), InvalidRequestError),
    (RefusedError(403, "unauthorized", "the security token included in the request is expired"), UnauthorizedError),
]


@pytest.mark.parametrize(("refusal", "kind"), REFUSALS, ids=["deleted", "created again", "credentials"])
def test_what_cannot_pass_is_said_at_once(
    batches: MicroBatches, store: StoreDouble, refusal: RefusedError, kind: type[HeadraceError]
) -> None:
    start = batches.initial()
    store.gone = refusal
    asked = store.requests.total()
    with pytest.raises(kind, match=str(refusal)):
        batches.latest(start, None)
    assert store.requests.total() == asked + 1, "nothing is repeated"


@pytest.mark.parametrize("scaled", [False, True])
def test_an_end_before_the_checkpoint_is_nothing_to_do(store: StoreDouble, where: dict[str, str], scaled: bool) -> None:
    fill(store, 10)
    end = cut_text(store.stream.tail())
    if scaled:
        store.stream.scale(list(store.stream.active), [(0.0, 1.0)])
    fill(store, 10)
    checkpoint = cut_text(store.stream.tail())
    batches = MicroBatches(read_options(where | {"end_stream_cut": end}))
    assert batches.latest(checkpoint, 50) == checkpoint
    assert batches.partitions(checkpoint, checkpoint) == []
    batches.close()


def test_an_end_that_is_no_cut_of_the_stream_is_an_error(store: StoreDouble, where: dict[str, str]) -> None:
    fill(store, 10)
    batches = MicroBatches(read_options(where | {"end_stream_cut": cut_text(store.stream.tail())}))
    start = batches.initial()
    store.gone = RefusedError(400, "invalid_stream_cut", "the stream cut is not valid: it does not cover the key space")
    with pytest.raises(InvalidRequestError, match="does not cover"):
        batches.latest(start, None)
    batches.close()


@pytest.mark.parametrize(
    ("time", "events"),
    [
        ("2001-01-01T00:00:00Z", 0),
        ("978307202000", 10),
        ("2001-01-01T00:00:02.5+00:00", 16),
        ("2999-01-01T00:00:00Z", 22),
    ],
    ids=["before the head", "milliseconds", "between", "after the tail"],
)
def test_times_are_starts_and_ends(store: StoreDouble, where: dict[str, str], time: str, events: int) -> None:
    fill(store, 10, TIME_MS_MIN + 1000)
    fill(store, 6, TIME_MS_MIN + 2000)
    fill(store, 6, TIME_MS_MIN + 3000)
    opened = open_plans(read_options(where | {"start_stream_cut": time, "end_stream_cut": time}))
    plans = opened.stream(STREAM)
    half = events // 2 * FRAME_BYTES
    assert plans.start_cut("earliest") == plans.end_cut("latest") == {0: half, 1: half}
    opened.close()


def test_a_query_has_no_end_in_the_future(store: StoreDouble, where: dict[str, str]) -> None:
    """No stream cut at that time is known yet, and the tail is not what is meant."""
    fill(store, 10)
    batches = MicroBatches(read_options(where | {"end_stream_cut": "2999-01-01T00:00:00Z"}))
    with pytest.raises(InvalidRequestError, match=r"option 'end_stream_cut': .* in the future") as raised:
        batches.initial()
    assert raised.value.specific_code == "invalid_option"
    batches.close()

"""Retention and subscribers over HTTP, from the policy to what is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from functions_in_memory import FunctionWorld

from functions import wiring
from functions.processors.tick_work import TICK_WORK
from headrace import topology
from headrace.model.backoff import bucket_of_stream

Call = Callable[..., Any]
BUCKET = bucket_of_stream("s/t", topology.BUCKET_COUNT)


@pytest.fixture
def retained_stream(world: FunctionWorld, call: Call, fixed_stream: Callable[..., dict[str, Any]]) -> str:
    """Path of the stream s/t of one segment of which 100 bytes are to stay."""
    call("POST", "/v1/scopes", {"scopeName": "s"})
    policy = {"type": "LIMITED_SIZE_BYTES", "value": 100, "maxValue": 150}
    assert call("POST", "/v1/scopes/s/streams", fixed_stream(segments=1, retentionPolicy=policy)).status == 201
    world.work()
    return "/v1/scopes/s/streams/t"


class Later:
    """A clock that is ahead."""

    def __init__(self, ahead_ms: int) -> None:
        self._inner, self._ahead_ms = wiring.clock(), ahead_ms

    def now_ms(self) -> int:
        return self._inner.now_ms() + self._ahead_ms

    def monotonic_s(self) -> float:
        return self._inner.monotonic_s()


@pytest.fixture
def tick(world: FunctionWorld, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Half an hour goes by, and retention has its tick."""
    ahead_ms = 0

    def run() -> None:
        nonlocal ahead_ms
        ahead_ms += 1_800_000
        wiring.forget_services()
        later = Later(ahead_ms)
        monkeypatch.setattr(wiring, "clock", lambda: later)
        assert TICK_WORK["retention"](BUCKET) is False
        world.work()

    return run


def test_from_a_policy_to_a_truncation(
    world: FunctionWorld, call: Call, retained_stream: str, tick: Callable[[], None]
):
    world.segment_stores.extend("s/t/0.#epoch.0", 60)
    tick()
    world.segment_stores.extend("s/t/0.#epoch.0", 120)
    told = call("GET", f"{retained_stream}/retention")
    assert told.status == 200
    assert told.body["keptBytes"] == 180
    assert told.body["retentionPolicy"] == {"type": "LIMITED_SIZE_BYTES", "value": 100, "maxValue": 150}
    assert told.body["retentionSet"] == 1
    assert told.body["nextTruncation"]["case"] == "not enough"
    tick()
    assert call("GET", f"{retained_stream}/stream-cut", at="head").body["cut"] == {"0": 60}
    told = call("GET", f"{retained_stream}/retention")
    assert (told.body["keptBytes"], told.body["retentionSet"]) == (120, 1)
    assert told.body["oldestEventAfter"] > 0


def test_the_next_truncation_is_told(world: FunctionWorld, call: Call, retained_stream: str, tick: Callable[[], None]):
    call("PUT", f"{retained_stream}/subscribers/group", {})
    for length in (60, 80, 10):
        world.segment_stores.extend("s/t/0.#epoch.0", length)
        tick()
    call("PUT", f"{retained_stream}/subscribers/group/position", {"streamCut": {"0": 30}})
    told = call("GET", f"{retained_stream}/retention").body
    assert told["subscribers"] == 1
    following = told["nextTruncation"]
    assert (following["case"], following["bytes"]) == ("within limits", 30)
    assert following["streamCut"]["cut"] == {"0": 30}
    assert "subscribers have read" in following["why"]


def test_a_subscriber_from_beginning_to_end(world: FunctionWorld, call: Call, active_stream: str):
    path = f"{active_stream}/subscribers"
    world.segment_stores.extend("s/t/0.#epoch.0", 60)
    made = call("PUT", f"{path}/s%2Fgroup", {"generation": 1})
    assert (made.status, made.body["subscriber"], made.body["generation"]) == (200, "s/group", 1)
    assert made.body["streamCut"] == {"0": 0, "1": 0}
    call("PUT", f"{path}/other", {"generation": 0, "streamCut": {"0": 60, "1": 0}})
    moved = call("PUT", f"{path}/s%2Fgroup/position", {"generation": 1, "streamCut": {"0": 10, "1": 0}})
    assert (moved.status, moved.body["streamCut"]) == (200, {"0": 10, "1": 0})
    first = call("GET", path, limit="1")
    assert [subscriber["subscriber"] for subscriber in first.body["subscribers"]] == ["other"]
    rest = call("GET", path, continuationToken=first.body["continuationToken"])
    assert [subscriber["subscriber"] for subscriber in rest.body["subscribers"]] == ["s/group"]
    assert rest.body["continuationToken"] is None
    assert call("GET", f"{path}/s%2Fgroup").body == moved.body
    assert call("DELETE", f"{path}/s%2Fgroup").status == 204
    assert call("DELETE", f"{path}/s%2Fgroup").status == 204
    missing = call("GET", f"{path}/s%2Fgroup")
    assert (missing.status, missing.code) == (404, "subscriber_not_found")


@pytest.mark.parametrize(
    ("method", "rest", "body", "status", "code"),
    [
        ("PUT", "g/position", {"streamCut": {"0": 0, "1": 0}}, 404, "subscriber_not_found"),
        ("PUT", "known/position", {"streamCut": {"0": 0}, "generation": 3}, 400, "stream_cut_not_valid"),
        ("PUT", "known/position", {"streamCut": {"0": -2, "1": 0}}, 400, "stream_cut_not_valid"),
        ("PUT", "known/position", {"streamCut": {"0": 1 << 63, "1": 0}}, 400, "stream_cut_not_valid"),
        ("PUT", "known/position", {"streamCut": {"0": 0, "00": 0, "1": 0}}, 400, "stream_cut_not_valid"),
        ("PUT", "known/position", {"streamCut": {"x": 0}}, 400, "invalid_request"),
        ("PUT", "known/position", {"streamCut": {"0": 0, "1": 0}, "generation": 4}, 412, "generation_mismatch"),
        ("PUT", "known/position", {}, 400, "invalid_request"),
        ("PUT", "known", {"generation": 2}, 412, "generation_mismatch"),
        ("PUT", "known", {"generation": -1}, 400, "invalid_request"),
        ("PUT", "new", {"streamCut": {"5": 0}}, 400, "stream_cut_not_valid"),
        ("PUT", "a%20b", {}, 400, "path_not_canonical"),
        ("PUT", "a%2Fb%2Fc", {}, 400, "invalid_name"),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(
    world: FunctionWorld, call: Call, active_stream: str, method: str, rest: str, body: Any, status: int, code: str
):
    call("PUT", f"{active_stream}/subscribers/known", {"generation": 3})
    before = world.contents()
    answer = call(method, f"{active_stream}/subscribers/{rest}", body)
    assert (answer.status, answer.code) == (status, code)
    assert world.contents() == before


def test_unregistering_may_name_a_generation(call: Call, active_stream: str):
    path = f"{active_stream}/subscribers/known"
    call("PUT", path, {"generation": 3})
    late = call("DELETE", path, generation="2")
    assert (late.status, late.code) == (412, "generation_mismatch")
    assert call("DELETE", path, generation="3").status == 204
    assert call("GET", path).status == 404


@pytest.mark.parametrize("rest", ["retention", "subscribers", "subscribers/g"])
def test_of_a_stream_that_is_not_there(call: Call, active_stream: str, rest: str):
    assert call("GET", f"/v1/scopes/s/streams/none/{rest}").status == 404

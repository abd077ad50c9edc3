"""Watermarks over HTTP, from the notes of writers to what lies in the mark segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from functions_in_memory import FunctionWorld

from functions import wiring
from functions.processors.tick_work import TICK_WORK
from headrace import topology
from headrace.model.backoff import bucket_of_stream

S2 = 1 << 32 | 2


def _note(call: Callable[..., Any], path: str, writer: str, time: int, **offsets: int) -> Any:
    position = {name[1:]: offset for name, offset in offsets.items()}
    return call("PUT", f"{path}/writers/{writer}/position", {"time": time, "position": position})


def test_from_a_note_to_a_watermark(world: FunctionWorld, call: Callable[..., Any], active_stream: str):
    nothing = call("GET", f"{active_stream}/watermark")
    assert (nothing.status, nothing.body) == (
        200,
        {"watermark": None, "markSegment": "s/_MARKt/0.#epoch.0", "offset": 0},
    )
    assert _note(call, active_stream, "w-1", 100, s0=10, s1=20).status == 204
    assert _note(call, active_stream, "170141183460469231731687303715884105727", 90, s0=15).status == 204
    TICK_WORK["watermarks"](bucket_of_stream("s/t", topology.BUCKET_COUNT))
    newest = call("GET", f"{active_stream}/watermark").body
    assert newest["watermark"] == {
        "lowerTime": 90,
        "upperTime": 100,
        "cut": [
            {"segmentId": 0, "low": 0.0, "high": 0.5, "offset": 15},
            {"segmentId": 1, "low": 0.5, "high": 1.0, "offset": 20},
        ],
    }
    assert world.segment_stores.segment_info(newest["markSegment"]).length > newest["offset"] == 0


def test_a_writer_is_removed(call: Callable[..., Any], active_stream: str):
    missing = call("DELETE", f"{active_stream}/writers/w")
    assert (missing.status, missing.code) == (404, "writer_not_found")
    _note(call, active_stream, "w", 1, s0=1)
    assert call("DELETE", f"{active_stream}/writers/w").status == 204
    assert call("DELETE", f"{active_stream}/writers/w").status == 204


@pytest.mark.parametrize(
    ("writer", "body", "code"),
    [
        ("w", {"time": 4, "position": {"0": 10}}, "invalid_time"),
        ("w", {"time": 5, "position": {"0": 9}}, "invalid_position"),
        ("w", {"time": 5, "position": {str(S2): 9}}, "invalid_position"),
        ("w", {"time": 5, "position": {"0": 10, "00": 11}}, "invalid_position"),
        ("w", {"time": 5, "position": {"0": -1}}, "invalid_position"),
        ("w", {"time": 5, "position": {"0": 1 << 63}}, "invalid_position"),
        ("w", {"time": 5, "position": {"x": 1}}, "invalid_request"),
        ("w", {"time": 5, "position": {}}, "invalid_request"),
        ("w", {"time": 5}, "invalid_request"),
        ("w", {"time": "5", "position": {"0": 10}}, "invalid_request"),
        ("w", {"time": -(1 << 63), "position": {"0": 10}}, "invalid_request"),
        ("_w", {"time": 5, "position": {"0": 10}}, "invalid_name"),
        ("w%2F", {"time": 5, "position": {"0": 10}}, "path_not_canonical"),
        ("subscribers", {"time": 5, "position": {"0": 10}}, "invalid_name"),
    ],
)
def test_what_is_refused_changes_nothing(
    world: FunctionWorld, call: Callable[..., Any], active_stream: str, writer: str, body: Any, code: str
):
    assert _note(call, active_stream, "w", 5, s0=10).status == 204
    before = world.contents()
    answer = call("PUT", f"{active_stream}/writers/{writer}/position", body)
    assert (answer.status, answer.code) == (400, code)
    assert world.contents() == before


def test_unknown_streams(call: Callable[..., Any], active_stream: str):
    for method, path, body in (
        ("PUT", "/v1/scopes/s/streams/u/writers/w/position", {"time": 5, "position": {"0": 10}}),
        ("DELETE", "/v1/scopes/s/streams/u/writers/w", None),
        ("GET", "/v1/scopes/s/streams/u/watermark", None),
    ):
        assert call(method, path, body).status == 404


def test_the_advancer_is_kept_from_tick_to_tick(world: FunctionWorld):
    assert wiring.watermark_ticks() is wiring.watermark_ticks()

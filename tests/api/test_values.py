"""Each value of the API survives its JSON, and its JSON is what the OpenAPI document promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from pydantic import ValidationError

from functions.controller import models_segments
from functions.controller.parameters import ApiValue, WireModel
from headrace.api.segments import (
    EpochSegments,
    Predecessors,
    RangeBetween,
    RangesBetween,
    SegmentEndpoint,
    SegmentView,
    Successor,
    Successors,
)
from headrace.api.stream_cuts import stream_cut_from_json, stream_cut_json
from headrace.model.segments import KeyRange
from headrace.model.stream_cuts import StreamCut

FIRST = SegmentView(0, "s/t/0.#epoch.0", KeyRange(0.0, 0.5), 7)
SECOND = SegmentView(1, "s/t/1.#epoch.0", KeyRange(0.5, 1.0))
NEXT = SegmentView(1 << 32 | 2, "s/t/2.#epoch.1", KeyRange(0.0, 0.5))
CUT = StreamCut.of("s", "t", {0: 7, 1: 0})


class Exchanged(NamedTuple):
    """A value, the function that reads its JSON, and the model that the OpenAPI document shows."""

    value: ApiValue
    from_json: Callable[[Mapping[str, Any]], object]
    model: type[WireModel]


def _ranges_between(document: Mapping[str, Any]) -> RangesBetween:
    return RangesBetween.from_json("s", "t", document)


EXCHANGED = {
    "segments of an epoch": Exchanged(
        EpochSegments(3, (FIRST, SECOND), sealed=True), EpochSegments.from_json, models_segments.SegmentList
    ),
    "successors": Exchanged(
        Successors((Successor(NEXT, (0, 1)),), sealed=False), Successors.from_json, models_segments.SuccessorList
    ),
    "predecessors": Exchanged(Predecessors((SECOND,)), Predecessors.from_json, models_segments.PredecessorList),
    "endpoint": Exchanged(
        SegmentEndpoint("10.0.0.1", 12345, "use1-az1", 3, 8), SegmentEndpoint.from_json, models_segments.Endpoint
    ),
    "ranges between": Exchanged(
        RangesBetween((RangeBetween(FIRST, 7, 9, (), (NEXT.segment_id,)),), CUT, CUT),
        _ranges_between,
        models_segments.Between,
    ),
}


@pytest.fixture(params=EXCHANGED.values(), ids=EXCHANGED)
def exchanged(request: pytest.FixtureRequest) -> Exchanged:
    found: Exchanged = request.param
    return found


def test_value_survives_its_json(exchanged: Exchanged):
    assert exchanged.from_json(exchanged.value.to_json()) == exchanged.value


def test_json_has_the_published_shape(exchanged: Exchanged):
    answered = exchanged.model.from_value(exchanged.value)
    assert answered.model_dump(by_alias=True) == exchanged.value.to_json()


def test_json_of_another_shape_is_not_answered(exchanged: Exchanged):
    class Longer:
        def to_json(self) -> dict[str, Any]:
            return {**exchanged.value.to_json(), "unknown": 1}

    with pytest.raises(ValidationError):
        exchanged.model.from_value(Longer())


def test_stream_cut_survives_its_json():
    document = stream_cut_json(CUT)
    assert stream_cut_from_json(document) == CUT
    assert models_segments.StreamCutModel.model_validate(document).model_dump() == document

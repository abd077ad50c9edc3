"""An active segment that a client has sealed over the wire is replaced by one of its range, once a client asks."""

from __future__ import annotations

import pytest
from soundness import assert_sound
from stream_world import StreamWorld, ranges, segment

from headrace.metadata.stream import current_key
from headrace.model.errors import IllegalStateError, UnavailableError
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState
from headrace.ports.metadata_store import Replace

SEALED = "s/t/0.#epoch.0"


@pytest.fixture
def sealed(world: StreamWorld) -> StreamWorld:
    """A stream with two segments; a client has sealed the first."""
    world.create(segments=2)
    world.append(0, 7)
    world.bare_segment_stores.seal_segment(SEALED)
    return world


def _ask(world: StreamWorld, identifier: int = 0) -> list[int]:
    successors = world.segments.successors("s", "t", identifier, as_recorded=True)
    assert not successors.sealed
    return [segment.segment_id for segment in successors.segments]


def test_a_sealed_active_segment_gets_a_successor(sealed: StreamWorld):
    assert _ask(sealed) == [], "as during a scale"
    assert sealed.records.get("s", "t").stream.state is StreamState.SCALING
    sealed.drain()
    assert _ask(sealed) == [segment(2, 1)]
    tail = sealed.segments.segments_at_tail("s", "t").segments
    assert [(segment.segment_id, segment.key_range) for segment in tail] == [
        (segment(2, 1), KeyRange(0.0, 0.5)),
        (1, KeyRange(0.5, 1.0)),
    ]
    assert_sound(sealed)


def test_many_that_ask_at_once_replace_it_once(sealed: StreamWorld):
    for _ in range(3):
        assert _ask(sealed) == []
    assert len(sealed.bare_queue) == 1
    sealed.drain()
    assert _ask(sealed) == [segment(2, 1)]
    assert sealed.tail_ids() == [segment(2, 1), 1]


def test_one_that_is_not_sealed_stays(sealed: StreamWorld):
    assert _ask(sealed, 1) == []
    assert sealed.records.get("s", "t").stream.state is StreamState.ACTIVE
    assert len(sealed.bare_queue) == 0


def test_a_question_of_no_writer_or_reader_replaces_nothing(sealed: StreamWorld):
    """Pravega's byte streams end with a sealed segment: only those that were in it want to go on."""
    assert sealed.segments.successors("s", "t", 0).segments == ()
    assert sealed.records.get("s", "t").stream.state is StreamState.ACTIVE


def test_it_is_replaced_below_the_minimum_of_its_policy(sealed: StreamWorld):
    """Former versions let streams have fewer segments than their minimum."""
    (record,) = sealed.bare_store.get_many([current_key("s", "t")])
    assert record is not None
    kind, _, *rates = record.body["configuration"]["scaling"]
    scaling = [kind, 3, *rates]
    body = {**record.body, "configuration": {**record.body["configuration"], "scaling": scaling}}
    sealed.bare_store.write(Replace(record.key, body, record.version))
    with pytest.raises(IllegalStateError):
        sealed.streams.scale_stream("s", "t", [0], ranges(0.0, 0.5))
    assert _ask(sealed) == []
    sealed.drain()
    assert _ask(sealed) == [segment(2, 1)]


@pytest.mark.parametrize("operation", ["scale", "truncate", "update", "seal"])
def test_other_operations_go_first(sealed: StreamWorld, operation: str):
    """The one that asks is told to ask again, and the sealed segment harms none of them."""
    faster = StreamConfiguration(ScalingPolicy.by_event_rate(5, 2, 2))
    {
        "scale": lambda: sealed.streams.scale_stream("s", "t", [0], ranges(0.0, 0.25, 0.5)),
        "truncate": lambda: sealed.streams.truncate_stream("s", "t", {0: 7, 1: 0}),
        "update": lambda: sealed.streams.update_stream("s", "t", faster),
        "seal": lambda: sealed.streams.seal_stream("s", "t"),
    }[operation]()
    sealed.calls.counts.clear()
    assert _ask(sealed) == []
    assert "segment store segment_info" not in sealed.calls.counts
    sealed.drain()
    successors = sealed.segments.successors("s", "t", 0, as_recorded=True)
    sealed.drain()
    if operation in ("truncate", "update"):
        assert not successors.segments
        successors = sealed.segments.successors("s", "t", 0, as_recorded=True)
    assert (len(successors.segments), successors.sealed) == {"scale": (2, False), "seal": (0, True)}.get(
        operation, (1, False)
    )
    assert_sound(sealed)


def test_a_change_between_the_look_and_the_scale_wins(sealed: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    look = sealed.bare_segment_stores.segment_info

    def slow(name: str) -> object:
        sealed.streams.seal_stream("s", "t")
        return look(name)

    monkeypatch.setattr(sealed.bare_segment_stores, "segment_info", slow)
    assert _ask(sealed) == []
    assert sealed.records.get("s", "t").stream.state is StreamState.SEALING


def test_a_store_that_is_away_is_asked_again(sealed: StreamWorld):
    sealed.calls.refuse("segment store segment_info", UnavailableError("away"))
    assert _ask(sealed) == []
    sealed.calls.calm()
    assert _ask(sealed) == []
    sealed.drain()
    assert _ask(sealed) == [segment(2, 1)]

"""Updates of a stream's configuration: its version, the index of tags, what is refused, and lists by prefix."""

from __future__ import annotations

import pytest
from stream_world import StreamWorld

from headrace.model.errors import ConflictError, IllegalStateError, InvalidRequestError, NotFoundError, SealedError
from headrace.model.stream_configuration import (
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    StreamConfiguration,
)
from headrace.model.stream_state import StreamState
from headrace.ports.segment_stores import SegmentScaleRate

RATED = StreamConfiguration(
    ScalingPolicy.by_event_rate(50, 3, 2),
    RetentionPolicy(RetentionType.LIMITED_DAYS, 3),
    ("b", "c"),
    timestamp_aggregation_timeout_ms=9,
    rollover_size_bytes=7,
)


def _names(world: StreamWorld, tag: str) -> list[str]:
    return [summary.stream for summary in world.streams.list_streams("s", 100, tag=tag).items]


def test_an_update_replaces_the_configuration(world: StreamWorld):
    world.create(tags=("a", "b"))
    accepted = world.streams.update_stream("s", "t", RATED)
    assert (accepted.state, accepted.configuration_version) == (StreamState.UPDATING, 1)
    before = world.streams.get_stream("s", "t")
    assert (before.state, before.configuration.tags, before.configuration_version) == ("UPDATING", ("a", "b"), 0)
    world.drain()
    after = world.streams.get_stream("s", "t")
    assert (after.state, after.configuration, after.configuration_version) == (StreamState.ACTIVE, RATED, 1)
    world.update(tags=())
    assert world.streams.get_stream("s", "t").configuration_version == 2


def test_the_tag_index_follows(world: StreamWorld):
    world.create(tags=("a", "b"))
    world.create("u", tags=("a",))
    world.update(tags=("b", "c"))
    assert [_names(world, tag) for tag in ("a", "b", "c")] == [["u"], ["t"], ["t"]]
    assert [summary.tags for summary in world.streams.list_streams("s", 10).items] == [("b", "c"), ("a",)]
    world.seal()
    world.delete()
    assert [_names(world, tag) for tag in ("a", "b", "c")] == [["u"], [], []]
    assert [sort for partition, sort in world.everything() if partition.startswith("tag/")] == ["u"]


def test_tags_change_in_any_number(world: StreamWorld):
    many = tuple(f"{index:03d}" for index in range(128))
    world.create(tags=many)
    world.update(tags=tuple(f"new-{tag}" for tag in many))
    assert len([partition for partition, _ in world.everything() if partition.startswith("tag/")]) == 128
    assert (_names(world, "000"), _names(world, "new-127")) == ([], ["t"])


def test_a_tag_that_stays_is_found_at_every_moment(world: StreamWorld):
    """At each call of the workflow a listing by the old, the kept and the new tag is what the configuration says."""
    world.create(tags=("kept", "old"))
    world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2), tags=("kept", "new")))
    seen: list[tuple[bool, bool, bool]] = []

    def look(_kind: str) -> None:
        hook, world.calls.before = world.calls.before, lambda kind: None
        tags = world.streams.get_stream("s", "t").configuration.tags
        found = {tag: _names(world, tag) == ["t"] for tag in ("kept", "old", "new")}
        assert found == {tag: tag in tags for tag in found}
        seen.append((found["kept"], found["old"], found["new"]))
        world.calls.before = hook

    world.calls.before = look
    world.drain()
    assert list(dict.fromkeys(seen)) == [(True, True, False), (True, False, True)]


def test_active_segments_learn_the_rate(world: StreamWorld):
    world.create(segments=2)
    world.scale([0], [0.0, 0.25, 0.5])
    world.calls.counts.clear()
    world.streams.update_stream("s", "t", RATED)
    world.drain()
    settings = {
        name: world.bare_segment_stores.creation_settings(name)[0] for name in world.bare_segment_stores.names()
    }
    assert {name: rate for name, rate in settings.items() if rate == SegmentScaleRate(2, 50)}.keys() == {
        "s/t/1.#epoch.0",
        "s/t/2.#epoch.1",
        "s/t/3.#epoch.1",
    }
    world.calls.counts.clear()
    world.streams.update_stream("s", "t", StreamConfiguration(RATED.scaling, tags=("only-tags",)))
    world.drain()
    assert not [kind for kind in world.calls.counts if kind.startswith("segment store")]


def test_a_running_update_is_accepted_again_another_is_not(world: StreamWorld):
    world.create()
    world.streams.update_stream("s", "t", RATED)
    assert world.streams.update_stream("s", "t", RATED).configuration_version == 1
    for other in (
        lambda: world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2))),
        lambda: world.streams.truncate_stream("s", "t", {0: 0, 1: 0}),
        lambda: world.streams.seal_stream("s", "t"),
    ):
        with pytest.raises(ConflictError):
            other()
    assert world.drain() == 1
    assert world.streams.get_stream("s", "t").configuration_version == 1


def test_an_update_that_expects_another_version_is_refused(world: StreamWorld):
    """Two changes of tags that were made from the same version: the second one must not drop what the first added."""
    world.create()
    first = StreamConfiguration(ScalingPolicy.fixed(2), tags=("first",))
    second = StreamConfiguration(ScalingPolicy.fixed(2), tags=("second",))
    assert world.streams.update_stream("s", "t", first, 0).configuration_version == 1
    with pytest.raises(ConflictError):  # while the first one runs
        world.streams.update_stream("s", "t", second, 0)
    world.drain()
    with pytest.raises(IllegalStateError) as refused:
        world.streams.update_stream("s", "t", second, 0)
    assert refused.value.specific_code == "configuration_changed"
    assert refused.value.details == {"configurationVersion": 1, "expectedConfigurationVersion": 0}
    assert world.streams.get_stream("s", "t").configuration == first
    assert world.streams.update_stream("s", "t", second, 1).configuration_version == 2
    world.drain()
    assert world.streams.get_stream("s", "t").configuration == second


def test_a_repeated_conditional_update_gets_the_same_answer(world: StreamWorld):
    world.create()
    accepted = world.streams.update_stream("s", "t", RATED, 0)
    assert world.streams.update_stream("s", "t", RATED, 0) == accepted, "while it runs"
    with pytest.raises(IllegalStateError):
        world.streams.update_stream("s", "t", RATED, 1)
    world.drain()
    assert world.streams.update_stream("s", "t", RATED, 0).configuration_version == 1, "and once it is done"
    assert not world.drain()


def test_what_cannot_be_updated(world: StreamWorld):
    with pytest.raises(NotFoundError):
        world.streams.update_stream("s", "t", RATED)
    world.create()
    world.seal()
    with pytest.raises(SealedError):
        world.streams.update_stream("s", "t", RATED)


def test_a_message_that_is_lost_is_replaced(world: StreamWorld):
    world.create()
    world.queue.is_down = True
    world.streams.update_stream("s", "t", RATED)
    world.queue.is_down = False
    (intent,) = [body for (partition, _), (_, body) in world.everything().items() if partition.startswith("requests/")]
    assert intent["kind"] == "update_stream"
    message = {name: intent[name] for name in ("kind", "scope", "stream", "request")}
    world.processor.process(message)
    assert world.streams.get_stream("s", "t").configuration == RATED


def test_streams_by_prefix(world: StreamWorld):
    for name in ("a", "ab", "abc", "abd", "ac", "b"):
        world.create(name, tags=("x",) if name != "abc" else ())
    page = world.streams.list_streams("s", 2, prefix="ab")
    assert ([summary.stream for summary in page.items], page.next_after) == (["ab", "abc"], "abc")
    rest = world.streams.list_streams("s", 2, page.next_after, prefix="ab")
    assert ([summary.stream for summary in rest.items], rest.next_after) == (["abd"], None)
    tagged = world.streams.list_streams("s", 10, prefix="ab", tag="x")
    assert [summary.stream for summary in tagged.items] == ["ab", "abd"]
    assert world.streams.list_streams("s", 10, prefix="zz").items == ()
    with pytest.raises(InvalidRequestError):
        world.streams.list_streams("s", 10, prefix="a/b")
    with pytest.raises(NotFoundError):
        world.streams.list_streams("nowhere", 10, prefix="a")

"""Streams that S3 acknowledges: their numbers stay in the blocks of their class, and the class never changes."""

from __future__ import annotations

import pytest
from stream_world import StreamWorld

from headrace.controller.services.stream_service import StreamService
from headrace.metadata.stream import configuration_fields, decode_configuration
from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.key_value_tables import TableConfiguration, new_table
from headrace.model.log_classes import NUMBER_BLOCK, ContainerLayout, LogClass, class_of_number
from headrace.model.names import segment_name
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.streams import new_stream

OF_STORES = StreamConfiguration(ScalingPolicy.fixed(2))
OF_S3 = StreamConfiguration(ScalingPolicy.fixed(2), log_class=LogClass.S3)


def _world() -> StreamWorld:
    """A deployment with containers of the class S3, and a stream `t` of it."""
    world = StreamWorld()
    world.streams = StreamService(world.store, world.queue, world.clock, s3_containers=4)
    world.streams.create_stream("s", "t", OF_S3)
    world.drain()
    return world


def test_the_class_is_refused_without_containers_for_it(world: StreamWorld):
    with pytest.raises(IllegalStateError, match="s3_containers=4") as refused:
        world.streams.create_stream("s", "t", OF_S3)
    assert refused.value.specific_code == "no_s3_containers"


def test_segments_are_in_containers_of_the_class():
    world, layout = _world(), ContainerLayout(8, 4)
    segments = world.records.get("s", "t").stream.epoch.segments
    names = [segment_name("s", "t", segment.segment_id) for segment in segments]
    assert all(world.bare_segment_stores.segment_info(name) for name in names)
    assert [layout.class_of(layout.container_of_segment(name)) for name in names] == [LogClass.S3] * 2


def test_a_scale_stays_in_the_blocks_of_the_class():
    stream = new_stream("s", "t", OF_S3, 2 * NUMBER_BLOCK - 3, 1)
    assert [segment.number for segment in stream.epoch.segments] == [2 * NUMBER_BLOCK - 3, 2 * NUMBER_BLOCK - 2]
    assert stream.epoch.first_new_number(1) == 2 * NUMBER_BLOCK - 1
    assert stream.epoch.first_new_number(2) == 3 * NUMBER_BLOCK


def test_a_name_that_was_deleted_may_get_the_other_class():
    first = new_stream("s", "t", OF_S3, 0, 1)
    assert first.first_segment_number == NUMBER_BLOCK
    second = new_stream("s", "t", OF_STORES, first.epoch.next_segment_number, 2)
    assert second.first_segment_number == 2 * NUMBER_BLOCK


def test_tables_are_of_the_default_class():
    table = new_table("s", "k", TableConfiguration(3, 8), NUMBER_BLOCK - 1, 1)
    assert {class_of_number(segment.number) for segment in table.segments} == {LogClass.STORES}


def test_an_update_keeps_the_class():
    world = _world()
    world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2), tags=("a",)))
    world.drain()
    stream = world.streams.get_stream("s", "t")
    assert (stream.configuration.tags, stream.acknowledged_by) == (("a",), LogClass.S3)
    with pytest.raises(InvalidRequestError, match="acknowledged by S3") as refused:
        world.streams.update_stream("s", "t", OF_S3, log_class=LogClass.STORES)
    assert refused.value.specific_code == "log_class_fixed"


def test_records_of_the_default_class_are_as_before():
    assert "log_class" not in configuration_fields(OF_STORES)
    assert decode_configuration(configuration_fields(OF_STORES)) == OF_STORES
    assert decode_configuration(configuration_fields(OF_S3)) == OF_S3

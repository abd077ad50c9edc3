"""Streams and byte streams, made and ended by Pravega's own client."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import foreign_client
import pytest

from headrace.client import Headrace, LogClass, ScalingPolicy

pytestmark = pytest.mark.xdist_group("foreign_client")


def test_streams_to_their_deletion(foreign: Callable[..., Any], ours: Headrace):
    seen = foreign(foreign_client.streams_to_their_deletion, "life")
    assert seen["scope"] == [True, False]
    assert seen["listed"]
    assert seen["streams"] == [True, False, True, True]
    assert seen["names"] == ["by-rate", "plain", "tagged"]
    assert seen["tags"] == [[], ["t1", "t2"]]
    assert seen["not there"] == [[], []]
    assert seen["refused"] == [True] * 4
    assert seen["ended"] == [(True, True, True)] * 3
    assert seen["deleted again"] is False
    assert seen["again"] is True
    assert seen["scope ended"] == [True, False, False]


def test_a_tag_chooses_that_s3_acknowledges(foreign: Callable[..., Any], ours: Headrace):
    count = 48  # the package waits for each event, a quarter of a second
    seen = foreign(foreign_client.events_that_s3_acknowledges, "s", "in-s3", count)
    assert seen == {"created": True, "tags": ["headrace.acknowledged-by=s3"]}
    assert ours.admin.get_stream("s", "in-s3").acknowledged_by is LogClass.S3
    tail = ours.admin.stream_cut("s", "in-s3", at="latest")
    read: dict[bytes, list[int]] = defaultdict(list)
    with ours.reader("s", "in-s3", start="earliest", end=tail) as reader:
        for event in reader:
            key, number = event.event.split()
            read[key].append(int(number))
    assert read == {b"%d" % key: list(range(key, count, 8)) for key in range(8)}


def test_updates_of_a_stream(start: Callable[..., foreign_client.Child], ours: Headrace):
    child = start(foreign_client.updates_of_a_stream, "s", "updated")
    assert child.hear() == "updated"
    view = ours.admin.get_stream("s", "updated")
    assert (view.scaling, view.tags, view.state) == (ScalingPolicy.by_event_rate(100, 2, 2), ("t1", "t2"), "ACTIVE")
    assert view.retention is not None
    child.say("go on")
    seen = child.hear()
    assert (seen["created"], seen["updated"], seen["again"]) == (True, True, True)
    assert (seen["tags"], seen["no tags"], seen["refused"]) == (["t1", "t2"], [], True)
    view = ours.admin.get_stream("s", "updated")
    assert (view.scaling, view.retention, view.configuration_version) == (ScalingPolicy.fixed(2), None, 2)


def test_a_byte_stream(foreign: Callable[..., Any], ours: Headrace):
    seen = foreign(foreign_client.byte_stream, "s", "bytes")
    length = 256 * 4096
    assert seen["ends"] == [0, length]
    assert seen["read"]
    assert seen["sought"] == [1000, bytes(number % 256 for number in range(1000, 1010))]
    assert seen["truncated"] == [5000, length]
    assert seen["behind"] == bytes(number % 256 for number in range(5000, 5003))


def test_one_byte_stream_of_two_kinds_of_clients(foreign: Callable[..., Any], ours: Headrace):
    ours.admin.create_stream("s", "shared-bytes", scaling=ScalingPolicy.fixed(1))
    theirs, mine, last = os.urandom(1 << 20), os.urandom(3 << 20), os.urandom(5000)
    foreign(foreign_client.write_byte_stream, "s", "shared-bytes", theirs)
    with ours.byte_stream("s", "shared-bytes") as stream:
        with stream.writer() as writer:
            writer.write(mine)
        written = theirs + mine
        with stream.writer(expected_offset=len(written)) as writer:
            writer.write(last)
            writer.truncate_data_before(1000)
        written += last
        seen = foreign(foreign_client.read_byte_stream, "s", "shared-bytes", 1000, len(written) - 1000)
        assert seen == {"ends": [1000, len(written)], "read": written[1000:]}
        stream.writer().close_and_seal()
        with stream.reader() as reader:
            assert reader.tell() == 1000
            assert reader.read() == written[1000:]


def test_a_sealed_stream_refuses_events_and_keeps_older_ones(foreign: Callable[..., Any], ours: Headrace):
    ours.admin.create_stream("s", "sealed", scaling=ScalingPolicy.fixed(2))
    refused = foreign(foreign_client.write_to_a_sealed_stream, "s", "sealed")
    assert refused[1]
    with ours.reader("s", "sealed", start="earliest") as reader:
        assert [event.event for event in reader] == [b"before"]

"""The options for writing: Pravega's names, checked before anything is written, with messages that say what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.model.errors import InvalidRequestError
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy
from headrace.spark.write_options import WriteOptions, write_options

REQUIRED = {"controller": "http://127.0.0.1:10080/", "scope": "s", "stream": "t"}


def checked(streaming: bool = True, **more: str) -> WriteOptions:
    return write_options(REQUIRED | more, streaming=streaming)


def test_defaults_are_exactly_once_and_visible_at_return() -> None:
    options = checked()
    assert options.controller == "http://127.0.0.1:10080"
    assert options.exactly_once
    assert options.read_after_write
    assert options.transaction_timeout_ms == 12 * 3600 * 1000
    assert options.status_poll_ms == 50
    assert options.targets == ("t",)
    assert options.new_streams.allow_scope
    assert options.new_streams.allow_stream
    assert options.new_streams.scaling == ScalingPolicy.fixed(1)
    assert options.new_streams.retention is None


def test_streams_are_sorted_and_name_the_home_once() -> None:
    assert checked(streams=" b, a ,t,b").targets == ("t", "a", "b")


def test_new_streams_get_the_policies_of_the_options() -> None:
    by_bytes = checked(default_num_segments="3", default_segment_target_rate_bytes_per_sec="4096")
    assert by_bytes.new_streams.scaling == ScalingPolicy.by_data_rate(4, 2, 3)
    by_events = checked(default_segment_target_rate_events_per_sec="7", default_scale_factor="4")
    assert by_events.new_streams.scaling == ScalingPolicy.by_event_rate(7, 4, 1)
    kept = checked(default_retention_duration_milliseconds="5000").new_streams.retention
    assert kept == RetentionPolicy.by_time(5000)
    assert checked(default_retention_size_bytes="77").new_streams.retention == RetentionPolicy.by_size(77)


def test_what_spark_adds_to_the_options_is_ignored() -> None:
    assert checked(queryName="q", path="/p") == checked()
    assert replace(checked(checkpointLocation="/c"), checkpoint_mark=None) == checked()


def test_a_checkpoint_has_a_mark_of_its_own() -> None:
    marks = {checked(checkpointLocation=place).checkpoint_mark for place in ("s3://b/c", "s3://b/c", "s3://b/d")}
    assert len(marks) == 2
    assert checked().checkpoint_mark is None


def test_a_batch_of_a_named_writer_has_an_epoch() -> None:
    options = checked(False, writer_id="nightly.job-1", epoch="0")
    assert (options.writer_id, options.epoch) == ("nightly.job-1", 0)
    assert checked(True, writer_id="copy").epoch is None


@pytest.mark.parametrize(
    ("streaming", "given", "option", "message"),
    [
        (True, {"stream": ""}, "stream", "it is required"),
        (True, {"exactly_onse": "true"}, "exactly_onse", "did you mean 'exactly_once'"),
        (True, {"start_stream_cut": "earliest"}, "start_stream_cut", "no such option"),
        (True, {"exactly_once": "perhaps"}, "exactly_once", "none of true, false"),
        (True, {"epoch": "3", "writer_id": "w"}, "epoch", "number of its batch"),
        (False, {"epoch": "3"}, "epoch", "give a writer_id"),
        (False, {"writer_id": "w"}, "writer_id", "needs an epoch"),
        (False, {"writer_id": "w", "epoch": str(1 << 63)}, "epoch", "more than"),
        (True, {"writer_id": "a/b"}, "writer_id", "letters, digits"),
        (True, {"writer_id": "w", "exactly_once": "false"}, "writer_id", "no meaning"),
        (True, {"transaction_timeout_ms": "9999"}, "transaction_timeout_ms", "at least 10000"),
        (True, {"transaction_timeout_ms": "86400001"}, "transaction_timeout_ms", "more than 86400000"),
        (True, {"transaction_status_poll_interval_ms": "0"}, "transaction_status_poll_interval_ms", "at least 1"),
        (True, {"streams": ",".join(f"s{n}" for n in range(40))}, "streams", "too many"),
        (True, {"default_scale_factor": "2"}, "default_scale_factor", "it needs"),
        (
            True,
            {"default_segment_target_rate_bytes_per_sec": "1023"},
            "default_segment_target_rate_bytes_per_sec",
            "1024",
        ),
        (True, {"default_num_segments": "1000000"}, "default_*", "minSegments"),
        (
            True,
            {
                "default_segment_target_rate_bytes_per_sec": "2048",
                "default_segment_target_rate_events_per_sec": "1",
            },
            "default_segment_target_rate_events_per_sec",
            "not both",
        ),
        (
            True,
            {"default_retention_duration_milliseconds": "1", "default_retention_size_bytes": "1"},
            "default_retention_size_bytes",
            "not both",
        ),
    ],
)
def test_wrong_options_are_refused(streaming: bool, given: dict[str, str], option: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as raised:
        checked(streaming, **given)
    assert raised.value.details == {"option": option}

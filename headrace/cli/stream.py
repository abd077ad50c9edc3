"""`headrace stream`: create, update, list, get, scale, truncate, seal, delete, and stream cuts."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from headrace.api.streams import ScaleProgress, StreamView
from headrace.cli.arguments import (
    CUT_HELP,
    add_from_and_to,
    add_no_wait,
    add_scope,
    add_stream,
    cut,
    key_range,
    number,
    positive,
    stream_of,
)
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.resource_command import ResourceCommand
from headrace.cli.segment import segment_document
from headrace.client import (
    Headrace,
    IllegalStateError,
    InvalidRequestError,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamCut,
)
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.configuration_updates import CONFIGURATION_CHANGED

SEGMENTS_DEFAULT = 2
SCALE_FACTOR_DEFAULT = 2

UPDATE_ATTEMPTS_MAX = 8
"""Attempts of an update that conflicts with other updates. At least one update succeeds per attempt."""


def stream_document(view: StreamView) -> dict[str, Any]:
    """A stream as JSON."""
    scaling, retention = view.scaling, view.retention
    return {
        "scope": view.scope,
        "stream": view.stream,
        "state": view.state,
        "epoch": view.epoch,
        "segments": view.segments,
        "scaling": {
            "type": scaling.type.value,
            "minSegments": scaling.min_segments,
            "targetRate": scaling.target_rate,
            "scaleFactor": scaling.scale_factor,
        },
        "retention": {"type": retention.type.value, "value": retention.value, "maxValue": retention.max_value}
        if retention
        else None,
        "tags": list(view.tags),
        "timestampAggregationTimeoutMs": view.timestamp_aggregation_timeout_ms,
        "rolloverSizeBytes": view.rollover_size_bytes,
        "configurationVersion": view.configuration_version,
        "creationTimeMs": view.creation_time_ms,
    }


def cut_document(position: StreamCut) -> dict[str, Any]:
    """A stream cut as JSON: the offsets by segment id, and the text form that Pravega's clients accept."""
    offsets = {str(segment): offset for segment, offset in position.positions}
    text = stream_cut_text(position)
    return {"scope": position.scope, "stream": position.stream, "cut": offsets, "text": text}


def _create(client: Headrace, options: argparse.Namespace) -> Outcome:
    view = client.admin.create_stream(
        *stream_of(options),
        scaling=_scaling(options, ScalingPolicy.fixed(SEGMENTS_DEFAULT)),
        retention=_retention(options, None),
        tags=options.tag,
        timestamp_aggregation_timeout_ms=options.timestamp_aggregation_timeout_ms or 0,
        rollover_size_bytes=options.rollover_size_bytes or 0,
        exist_ok=options.exist_ok,
        wait=not options.no_wait,
    )
    return Outcome(stream_document(view))


def _update(client: Headrace, options: argparse.Namespace) -> Outcome:
    """Changes the named parts of the configuration.

    An update by another client between the read and the write is kept: the write then fails, and is tried again on the
    new configuration.
    """
    for _ in range(UPDATE_ATTEMPTS_MAX - 1):
        try:
            return _try_to_update(client, options)
        except IllegalStateError as error:
            if error.specific_code != CONFIGURATION_CHANGED:
                raise
    return _try_to_update(client, options)


def _try_to_update(client: Headrace, options: argparse.Namespace) -> Outcome:
    """Replaces the whole configuration, as the API demands; parts that are not named keep the values just read."""
    known = client.admin.get_stream(*stream_of(options))
    timeout_ms, rollover = options.timestamp_aggregation_timeout_ms, options.rollover_size_bytes
    view = client.admin.update_stream(
        *stream_of(options),
        scaling=_scaling(options, known.scaling),
        retention=None if options.retain_everything else _retention(options, known.retention),
        tags=(set(known.tags) | set(options.tag)) - set(options.untag),
        timestamp_aggregation_timeout_ms=known.timestamp_aggregation_timeout_ms if timeout_ms is None else timeout_ms,
        rollover_size_bytes=known.rollover_size_bytes if rollover is None else rollover,
        expected_version=known.configuration_version,
        wait=not options.no_wait,
    )
    return Outcome(stream_document(view))


def _truncate(client: Headrace, options: argparse.Namespace) -> Outcome:
    client.admin.truncate_stream(*stream_of(options), options.cut, wait=not options.no_wait)
    return _done(options, "truncated", "being truncated")


def _scaling_events(client: Headrace, options: argparse.Namespace) -> Outcome:
    events = client.admin.scaling_events(*stream_of(options), from_ms=options.from_ms, to_ms=options.to_ms)
    document = [
        {
            "epoch": one.epoch,
            "timeMs": one.time_ms,
            "splits": one.splits,
            "merges": one.merges,
            "sealedSegments": list(one.sealed_segments),
            "newSegments": [segment_document(segment) for segment in one.new_segments],
        }
        for one in events
    ]
    rows = [
        (
            time_text(one.time_ms),
            one.epoch,
            one.splits,
            one.merges,
            one.sealed_segments,
            [segment.segment_id for segment in one.new_segments],
        )
        for one in events
    ]
    return Outcome({"scalingEvents": document}, ("TIME", "EPOCH", "SPLITS", "MERGES", "SEALED", "NEW"), rows)


def _check_cut(client: Headrace, options: argparse.Namespace) -> Outcome:
    valid = client.admin.is_stream_cut_valid(*stream_of(options), options.cut)
    return Outcome({"valid": valid}, text="valid" if valid else "not valid")


def _distance(client: Headrace, options: argparse.Namespace) -> Outcome:
    distance = client.admin.stream_cut_distance(*stream_of(options), options.from_cut, options.to_cut)
    return Outcome({"bytes": distance}, text=f"{distance} bytes")


def _list(client: Headrace, options: argparse.Namespace) -> Outcome:
    streams = client.admin.list_streams(options.scope, tag=options.tag, prefix=options.prefix)
    document = {"streams": [{"scope": one.scope, "stream": one.stream, "tags": list(one.tags)} for one in streams]}
    return Outcome(document, ("STREAM", "TAGS"), [(f"{one.scope}/{one.stream}", one.tags) for one in streams])


def _get(client: Headrace, options: argparse.Namespace) -> Outcome:
    return Outcome(stream_document(client.admin.get_stream(*stream_of(options))))


def _scale(client: Headrace, options: argparse.Namespace) -> Outcome:
    progress = client.admin.scale_stream(
        *stream_of(options), seal=options.seal, ranges=options.range, wait=not options.no_wait
    )
    return _progress(progress)


def _scale_status(client: Headrace, options: argparse.Namespace) -> Outcome:
    return _progress(client.admin.scale_status(*stream_of(options), options.epoch))


def _progress(progress: ScaleProgress) -> Outcome:
    segments = [
        {"segment": one.segment_id, "low": one.key_range.low, "high": one.key_range.high} for one in progress.segments
    ]
    document = {"epoch": progress.epoch, "status": progress.status, "segments": segments}
    ids = ", ".join(str(one.segment_id) for one in progress.segments)
    created = f": segments {ids}" if ids else ""
    return Outcome(document, text=f"scale to epoch {progress.epoch}: {progress.status}{created}")


def _seal(client: Headrace, options: argparse.Namespace) -> Outcome:
    client.admin.seal_stream(*stream_of(options), wait=not options.no_wait)
    return _done(options, "sealed", "being sealed")


def _delete(client: Headrace, options: argparse.Namespace) -> Outcome:
    client.admin.delete_stream(*stream_of(options), wait=not options.no_wait)
    return _done(options, "deleted", "being deleted")


def _done(options: argparse.Namespace, done: str, accepted: str) -> Outcome:
    scope, stream = stream_of(options)
    document = {"scope": scope, "stream": stream, done: not options.no_wait}
    return Outcome(document, text=f"stream {options.stream} is {accepted if options.no_wait else done}")


def _cut(client: Headrace, options: argparse.Namespace) -> Outcome:
    found = client.admin.stream_cut(*stream_of(options), at=options.at)
    return Outcome(cut_document(found), ("SEGMENT", "OFFSET"), found.positions)


def _scaling(options: argparse.Namespace, known: ScalingPolicy) -> ScalingPolicy:
    """The policy `known`, changed by the given options."""
    segments = known.min_segments if options.segments is None else options.segments
    factor = options.scale_factor or known.scale_factor or SCALE_FACTOR_DEFAULT
    if options.events_per_s is not None:
        return ScalingPolicy.by_event_rate(options.events_per_s, factor, segments)
    if options.kbytes_per_s is not None:
        return ScalingPolicy.by_data_rate(options.kbytes_per_s, factor, segments)
    if options.fixed or known.type is ScalingType.FIXED_NUM_SEGMENTS:
        return ScalingPolicy.fixed(segments)
    return ScalingPolicy(known.type, segments, known.target_rate, factor)


def _retention(options: argparse.Namespace, known: RetentionPolicy | None) -> RetentionPolicy | None:
    if options.retain_days is not None:
        return RetentionPolicy(RetentionType.LIMITED_DAYS, options.retain_days, options.retain_max)
    if options.retain_mb is not None:
        return RetentionPolicy(RetentionType.LIMITED_SIZE_MB, options.retain_mb, options.retain_max)
    if options.retain_max is not None:
        if known is None:
            raise InvalidRequestError("--retain-max needs --retain-days or --retain-mb")
        return replace(known, max_value=options.retain_max)
    return known


def _add_configuration(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Adds the options of a configuration. Returns the group of the retention options, to which `update` adds one."""
    parser.add_argument(
        "--segments", type=positive, metavar="N", help="number of segments; the minimum if the stream scales itself"
    )
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--fixed", action="store_true", help="do not scale automatically (default of a new stream)")
    rate.add_argument(
        "--events-per-s", type=positive, metavar="N", help="target rate of a segment; a busier segment is split"
    )
    rate.add_argument(
        "--kbytes-per-s", type=positive, metavar="N", help="target rate of a segment; a busier segment is split"
    )
    parser.add_argument("--scale-factor", type=positive, metavar="N", help="number of segments that a split creates")
    retain = parser.add_mutually_exclusive_group()
    retain.add_argument("--retain-days", type=positive, metavar="N", help="keep events for at least N days")
    retain.add_argument("--retain-mb", type=positive, metavar="N", help="keep at least N MB")
    parser.add_argument("--retain-max", type=positive, metavar="N", help="keep at most N days or MB")
    parser.add_argument("--tag", action="append", default=[], metavar="TAG", help="add a tag; may be repeated")
    parser.add_argument(
        "--timestamp-aggregation-timeout-ms",
        type=number,
        metavar="MS",
        help="how long watermarks wait for a silent writer",
    )
    parser.add_argument("--rollover-size-bytes", type=number, metavar="BYTES")
    return retain


def _command() -> ResourceCommand:
    command = ResourceCommand("stream", "Streams: unbounded, durable sequences of events.")

    parser = command.action("create", _create, "Create a stream.")
    add_stream(parser)
    _add_configuration(parser)
    parser.add_argument("--exist-ok", action="store_true", help="accept an existing stream without changing it")
    add_no_wait(parser)

    parser = command.action("update", _update, "Change a stream; options that are not given keep their values.")
    add_stream(parser)
    retain = _add_configuration(parser)
    retain.add_argument("--retain-everything", action="store_true", help="remove the retention policy")
    parser.add_argument("--untag", action="append", default=[], metavar="TAG", help="remove a tag; may be repeated")
    add_no_wait(parser)

    parser = command.action("list", _list, "List the streams of a scope by name.")
    add_scope(parser)
    parser.add_argument("--tag", metavar="TAG", help="only streams with this tag")
    parser.add_argument("--prefix", default="", metavar="TEXT", help="only streams whose names start with TEXT")

    add_stream(command.action("get", _get, "Show a stream: state, epoch, configuration."))

    parser = command.action("scale", _scale, "Replace segments by new ones that cover the same key ranges.")
    add_stream(parser)
    parser.add_argument(
        "--seal", type=number, nargs="+", required=True, metavar="SEGMENT", help="ids of the segments to replace"
    )
    parser.add_argument(
        "--range", type=key_range, nargs="+", required=True, metavar="LOW:HIGH", help="key ranges of the new segments"
    )
    add_no_wait(parser)

    parser = command.action("scale-status", _scale_status, "Show the status of the scale that creates an epoch.")
    add_stream(parser)
    parser.add_argument("epoch", type=number, metavar="EPOCH")

    parser = command.action("seal", _seal, "Seal a stream: it accepts no more events.")
    add_stream(parser)
    add_no_wait(parser)

    parser = command.action("delete", _delete, "Delete a sealed stream.")
    add_stream(parser)
    add_no_wait(parser)

    parser = command.action("cut", _cut, "Show the stream cut at the head or the tail.")
    add_stream(parser)
    parser.add_argument("--at", choices=["head", "tail"], default="tail")

    _add_cuts_and_events(command)
    return command


def _add_cuts_and_events(command: ResourceCommand) -> None:
    parser = command.action("truncate", _truncate, "Delete everything before a stream cut.")
    add_stream(parser)
    parser.add_argument("cut", type=cut, metavar="CUT", help=CUT_HELP)
    add_no_wait(parser)

    parser = command.action("check-cut", _check_cut, "Check whether a reader can start or stop at a stream cut.")
    add_stream(parser)
    parser.add_argument("cut", type=cut, metavar="CUT", help=CUT_HELP)

    parser = command.action("distance", _distance, "Show the number of bytes between two stream cuts.")
    add_stream(parser)
    add_from_and_to(parser)

    parser = command.action("scaling-events", _scaling_events, "List the scales between two times, oldest first.")
    add_stream(parser)
    parser.add_argument("--from-ms", type=number, default=0, metavar="MS", help="milliseconds since 1970 (default 0)")
    parser.add_argument("--to-ms", type=number, metavar="MS", help="milliseconds since 1970 (default: now)")


main = _command()

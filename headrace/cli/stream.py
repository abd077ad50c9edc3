"""`headrace stream`: create, list, get, scale, seal, delete, and stream cuts."""

from __future__ import annotations

import argparse
from typing import Any

from headrace.cli.arguments import add_no_wait, add_scope, add_stream, key_range, number, positive, stream_of
from headrace.cli.noun import NounCommand
from headrace.cli.outcome import Outcome
from headrace.client import Headrace, RetentionPolicy, RetentionType, ScalingPolicy, StreamCut
from headrace.client.views import ScaleProgress, StreamView
from headrace.codec.stream_cut_text import stream_cut_text

SEGMENTS_DEFAULT = 2
SCALE_FACTOR_DEFAULT = 2


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
        "creationTimeMs": view.creation_time_ms,
    }


def cut_document(cut: StreamCut) -> dict[str, Any]:
    """A stream cut as JSON: the offsets by segment id, and the text that Pravega's clients take."""
    offsets = {str(segment): offset for segment, offset in cut.positions}
    return {"scope": cut.scope, "stream": cut.stream, "cut": offsets, "text": stream_cut_text(cut)}


def _create(client: Headrace, options: argparse.Namespace) -> Outcome:
    view = client.admin.create_stream(
        *stream_of(options),
        scaling=_scaling(options),
        retention=_retention(options),
        tags=options.tag,
        timestamp_aggregation_timeout_ms=options.timestamp_aggregation_timeout_ms,
        rollover_size_bytes=options.rollover_size_bytes,
        exist_ok=options.exist_ok,
        wait=not options.no_wait,
    )
    return Outcome(stream_document(view))


def _list(client: Headrace, options: argparse.Namespace) -> Outcome:
    streams = client.admin.list_streams(options.scope, tag=options.tag)
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
    cut = client.admin.stream_cut(*stream_of(options), at=options.at)
    return Outcome(cut_document(cut), ("SEGMENT", "OFFSET"), cut.positions)


def _scaling(options: argparse.Namespace) -> ScalingPolicy:
    if options.events_per_s is not None:
        return ScalingPolicy.by_event_rate(options.events_per_s, options.scale_factor, options.segments)
    if options.kbytes_per_s is not None:
        return ScalingPolicy.by_data_rate(options.kbytes_per_s, options.scale_factor, options.segments)
    return ScalingPolicy.fixed(options.segments)


def _retention(options: argparse.Namespace) -> RetentionPolicy | None:
    if options.retain_days is not None:
        return RetentionPolicy(RetentionType.LIMITED_DAYS, options.retain_days, options.retain_max)
    if options.retain_mb is not None:
        return RetentionPolicy(RetentionType.LIMITED_SIZE_MB, options.retain_mb, options.retain_max)
    return None


def _add_configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--segments",
        type=positive,
        default=SEGMENTS_DEFAULT,
        metavar="N",
        help=f"how many, at least if it scales by itself (default {SEGMENTS_DEFAULT})",
    )
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--events-per-s", type=positive, metavar="N", help="of one segment: more splits it")
    rate.add_argument("--kbytes-per-s", type=positive, metavar="N", help="of one segment: more splits it")
    parser.add_argument(
        "--scale-factor",
        type=positive,
        default=SCALE_FACTOR_DEFAULT,
        metavar="N",
        help=f"into how many segments a hot one is split (default {SCALE_FACTOR_DEFAULT})",
    )
    retain = parser.add_mutually_exclusive_group()
    retain.add_argument("--retain-days", type=positive, metavar="N", help="keep events at least so long")
    retain.add_argument("--retain-mb", type=positive, metavar="N", help="keep at least so much")
    parser.add_argument("--retain-max", type=positive, metavar="N", help="and at most so many days or MB")
    parser.add_argument("--tag", action="append", default=[], metavar="TAG", help="may be given often")
    parser.add_argument("--timestamp-aggregation-timeout-ms", type=number, default=0, metavar="MS")
    parser.add_argument("--rollover-size-bytes", type=number, default=0, metavar="BYTES")


def _command() -> NounCommand:
    command = NounCommand("stream", "Streams: unbounded sequences of events.")

    parser = command.action("create", _create, "Create a stream.")
    add_stream(parser)
    _add_configuration(parser)
    parser.add_argument("--exist-ok", action="store_true", help="take a stream that exists as it is")
    add_no_wait(parser)

    parser = command.action("list", _list, "List the streams of a scope by name.")
    add_scope(parser)
    parser.add_argument("--tag", metavar="TAG", help="only streams that carry it")

    add_stream(command.action("get", _get, "Show a stream: state, epoch, configuration."))

    parser = command.action("scale", _scale, "Replace segments by others that fill the same key ranges.")
    add_stream(parser)
    parser.add_argument(
        "--seal", type=number, nargs="+", required=True, metavar="SEGMENT", help="ids of what is replaced"
    )
    parser.add_argument(
        "--range", type=key_range, nargs="+", required=True, metavar="LOW:HIGH", help="of the new segments"
    )
    add_no_wait(parser)

    parser = command.action("scale-status", _scale_status, "Say how far the scale to an epoch is.")
    add_stream(parser)
    parser.add_argument("epoch", type=number, metavar="EPOCH")

    parser = command.action("seal", _seal, "Close a stream: it takes no more events.")
    add_stream(parser)
    add_no_wait(parser)

    parser = command.action("delete", _delete, "Delete a sealed stream.")
    add_stream(parser)
    add_no_wait(parser)

    parser = command.action("cut", _cut, "Show the stream cut at an end.")
    add_stream(parser)
    parser.add_argument("--at", choices=["head", "tail"], default="tail")
    return command


main = _command()

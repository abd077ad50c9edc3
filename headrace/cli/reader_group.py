"""`headrace reader-group`: create, list, get, update, reset, delete."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from headrace.api.reader_groups import ReaderGroupView
from headrace.cli.arguments import ScopedName, add_no_wait, add_scope, cut, number, positive, scoped_name
from headrace.cli.outcome import Outcome
from headrace.cli.resource_command import ResourceCommand
from headrace.client import Headrace, InvalidRequestError, StreamCut
from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, RetentionMode

_MODES = {mode.value.lower().replace("_", "-"): mode for mode in RetentionMode}


def _document(view: ReaderGroupView) -> dict[str, Any]:
    configuration = view.configuration
    return {
        "scope": view.scope,
        "readerGroup": view.group,
        "id": view.group_id,
        "generation": view.generation,
        "state": view.state,
        "stateStream": view.state_stream,
        "retention": configuration.retention.value,
        "groupRefreshMs": configuration.group_refresh_ms,
        "automaticCheckpointIntervalMs": configuration.automatic_checkpoint_interval_ms,
        "outstandingCheckpointsMax": configuration.outstanding_checkpoints_max,
        "rolloverSizeBytes": configuration.rollover_size_bytes,
        "streams": [
            {"scope": one.scope, "stream": one.stream, "from": _offsets(one.start), "to": _offsets(one.end)}
            for one in configuration.streams
        ],
    }


def _offsets(position: StreamCut | None) -> dict[str, int] | None:
    return None if position is None else {str(segment): offset for segment, offset in position.positions}


def _shown(view: ReaderGroupView) -> Outcome:
    return Outcome(_document(view))


def _create(client: Headrace, options: argparse.Namespace) -> Outcome:
    base = ReaderGroupConfiguration(_streams(options))
    view = client.admin.reader_groups.create(
        *_group_of(options), _changed(base, options), group_id=options.id, wait=not options.no_wait
    )
    return _shown(view)


def _list(client: Headrace, options: argparse.Namespace) -> Outcome:
    names = client.admin.reader_groups.list(options.scope)
    document = {"readerGroups": [{"scope": options.scope, "readerGroup": name} for name in names]}
    return Outcome(document, ("READER GROUP",), [(f"{options.scope}/{name}",) for name in names])


def _get(client: Headrace, options: argparse.Namespace) -> Outcome:
    return _shown(client.admin.reader_groups.get(*_group_of(options)))


def _update(client: Headrace, options: argparse.Namespace) -> Outcome:
    known = client.admin.reader_groups.get(*_group_of(options))
    base = replace(known.configuration, streams=_streams(options)) if options.stream else known.configuration
    changed = _changed(base, options)
    return _shown(client.admin.reader_groups.update(known, changed, wait=not options.no_wait))


def _reset(client: Headrace, options: argparse.Namespace) -> Outcome:
    known = client.admin.reader_groups.get(*_group_of(options))
    return _shown(client.admin.reader_groups.reset(known, wait=not options.no_wait))


def _delete(client: Headrace, options: argparse.Namespace) -> Outcome:
    scope, group = _group_of(options)
    client.admin.reader_groups.delete(client.admin.reader_groups.get(scope, group), wait=not options.no_wait)
    document = {"scope": scope, "readerGroup": group, "deleted": not options.no_wait}
    return Outcome(document, text=f"reader group {scope}/{group} is {'being ' if options.no_wait else ''}deleted")


def _streams(options: argparse.Namespace) -> tuple[GroupStream, ...]:
    starts, ends = dict(options.start), dict(options.end)
    unknown = {*starts, *ends} - set(options.stream)
    if unknown:
        raise InvalidRequestError(
            f"--start or --end names {min(map(str, unknown))}, which is not a stream of the group"
        )
    return tuple(
        GroupStream(name.scope, name.name, _cut(name, starts.get(name)), _cut(name, ends.get(name)))
        for name in options.stream
    )


def _cut(name: ScopedName, offsets: dict[int, int] | None) -> StreamCut | None:
    return None if offsets is None else StreamCut.of(name.scope, name.name, offsets)


def _changed(base: ReaderGroupConfiguration, options: argparse.Namespace) -> ReaderGroupConfiguration:
    wanted = {
        "retention": None if options.retention is None else _MODES[options.retention],
        "group_refresh_ms": options.group_refresh_ms,
        "automatic_checkpoint_interval_ms": options.automatic_checkpoint_interval_ms,
        "outstanding_checkpoints_max": options.outstanding_checkpoints_max,
        "rollover_size_bytes": options.rollover_size_bytes,
    }
    return replace(base, **{name: value for name, value in wanted.items() if value is not None})


def _stream_cut(text: str) -> tuple[ScopedName, dict[int, int]]:
    """Parses `SCOPE/STREAM=CUT`."""
    name, _, position = text.partition("=")
    return scoped_name(name), cut(position)


def _group_of(options: argparse.Namespace) -> ScopedName:
    found: ScopedName = options.group
    return found


def _add_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", type=scoped_name, metavar="SCOPE/GROUP")


def _add_configuration(parser: argparse.ArgumentParser, *, streams_required: bool) -> None:
    parser.add_argument(
        "--stream",
        type=scoped_name,
        action="append",
        default=[],
        required=streams_required,
        metavar="SCOPE/STREAM",
        help="a stream that the group reads; may be repeated",
    )
    for name, what in (
        ("start", "where the group starts to read a stream (default: the head)"),
        ("end", "where the group stops reading a stream (default: never)"),
    ):
        parser.add_argument(
            f"--{name}", type=_stream_cut, action="append", default=[], metavar="SCOPE/STREAM=CUT", help=what
        )
    parser.add_argument(
        "--retention", choices=sorted(_MODES), help="whether retention waits for the group, and for which position"
    )
    parser.add_argument("--group-refresh-ms", type=number, metavar="MS")
    parser.add_argument("--automatic-checkpoint-interval-ms", type=number, metavar="MS")
    parser.add_argument("--outstanding-checkpoints-max", type=positive, metavar="N")
    parser.add_argument("--rollover-size-bytes", type=number, metavar="BYTES")


def _command() -> ResourceCommand:
    command = ResourceCommand("reader-group", "Reader groups: readers that share the segments of streams.")

    parser = command.action("create", _create, "Create a reader group; an existing group is shown unchanged.")
    _add_group(parser)
    _add_configuration(parser, streams_required=True)
    parser.add_argument("--id", metavar="UUID", help="id of the group (default: a random one)")
    add_no_wait(parser)

    add_scope(command.action("list", _list, "List the reader groups of a scope by name."))
    _add_group(command.action("get", _get, "Show a reader group: state, generation, configuration."))

    parser = command.action("update", _update, "Change a reader group; options that are not given keep their values.")
    _add_group(parser)
    _add_configuration(parser, streams_required=False)
    add_no_wait(parser)

    parser = command.action("reset", _reset, "Move the readers of a group back to its start cuts.")
    _add_group(parser)
    add_no_wait(parser)

    parser = command.action("delete", _delete, "Delete a reader group.")
    _add_group(parser)
    add_no_wait(parser)
    return command


main = _command()

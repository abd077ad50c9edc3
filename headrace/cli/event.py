"""`headrace event`: append lines of standard input to a stream, read its events, or follow its tail.

Events are bytes. Each is printed as a line of UTF-8 text; control characters and bytes that are not UTF-8 are escaped.
With --json each event is an object on its own line, with the event as text, or in base64 if it is not UTF-8.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator
from typing import Any

from headrace.cli.arguments import CUT_HELP, add_stream, cut, positive, stream_of
from headrace.cli.outcome import Outcome, cell
from headrace.cli.resource_command import ResourceCommand
from headrace.client import EventRead, Headrace, InvalidRequestError, StreamCut
from headrace.client.event_reader import Start


def _append(client: Headrace, options: argparse.Namespace) -> Outcome:
    appended = 0
    with client.writer(*stream_of(options)) as writer:
        for key, event in _lines(options):
            writer.write(event, key)
            appended += 1
    return Outcome({"appended": appended}, text=f"{appended} events appended")


def _lines(options: argparse.Namespace) -> Iterator[tuple[str | None, bytes]]:
    """The routing key and the event of each line of standard input."""
    separator = options.key_separator
    for number, line in enumerate(sys.stdin.buffer, 1):
        event = line.rstrip(b"\r\n")
        if separator is None:
            yield options.routing_key, event
            continue
        key, found, event = event.partition(separator.encode())
        if not found:
            raise InvalidRequestError(f"line {number} has no {separator!r} between the routing key and the event")
        yield key.decode("utf-8", "replace"), event


def _read(client: Headrace, options: argparse.Namespace) -> None:
    end = client.admin.stream_cut(*stream_of(options), at="tail")
    _show(client, options, end)


def _tail(client: Headrace, options: argparse.Namespace) -> None:
    _show(client, options, None)


def _show(client: Headrace, options: argparse.Namespace, end: StreamCut | None) -> None:
    scope, stream = stream_of(options)
    start: Start = "tail" if options.start == "tail" else "head"
    if isinstance(options.start, dict):
        start = StreamCut.of(scope, stream, options.start)
    left = options.count
    with client.reader(scope, stream, start=start, end=end) as reader:
        for event in reader:
            print(_document(event) if options.json else _text(event.event), flush=end is None)
            left = None if left is None else left - 1
            if left == 0:
                return


def _text(event: bytes) -> str:
    return cell(event.decode("utf-8", "backslashreplace")) if event else ""


def _document(event: EventRead) -> str:
    document: dict[str, Any] = {"segment": event.segment_id, "offset": event.offset}
    try:
        document["event"] = event.event.decode()
    except UnicodeDecodeError:
        document["base64"] = base64.b64encode(event.event).decode()
    return json.dumps(document)


def _start(text: str) -> str | dict[int, int]:
    return text if text in ("head", "tail") else cut(text)


def _add_reading(parser: argparse.ArgumentParser, start: str) -> None:
    add_stream(parser)
    parser.add_argument(
        "--start", type=_start, default=start, metavar="POINT", help=f"head, tail, or {CUT_HELP} (default {start})"
    )
    parser.add_argument("--count", type=positive, metavar="N", help="stop after N events")


def _command() -> ResourceCommand:
    command = ResourceCommand("event", "Events of a stream. Connects to the segment stores directly.")

    parser = command.action("append", _append, "Append each line of standard input; return when all are durable.")
    add_stream(parser)
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--routing-key", metavar="KEY", help="for all events (default: none, so the order is not kept)")
    keys.add_argument("--key-separator", metavar="TEXT", help="each line is a routing key, this text and the event")

    _add_reading(command.action("read", _read, "Print the events up to the current tail, then stop."), "head")
    _add_reading(command.action("tail", _tail, "Print events as they arrive, until Ctrl-C or --count."), "tail")
    return command


main = _command()

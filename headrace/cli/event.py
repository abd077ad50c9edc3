"""`headrace event`: append lines of standard input to a stream, read what is in one, follow its tail.

Events are bytes. People see each on a line of its own, as UTF-8; what is none, and controls, are escaped. With --json
each event is an object on a line of its own, with its text, or in base64 what is no UTF-8.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator
from typing import Any

from headrace.cli.arguments import CUT_HELP, add_stream, cut, positive, stream_of
from headrace.cli.noun import NounCommand
from headrace.cli.outcome import Outcome, cell
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
    """Routing key and event of each line."""
    separator = options.key_separator
    for number, line in enumerate(sys.stdin.buffer, 1):
        event = line.rstrip(b"\r\n")
        if separator is None:
            yield options.routing_key, event
            continue
        key, found, event = event.partition(separator.encode())
        if not found:
            raise InvalidRequestError(f"line {number} has no {separator!r} between routing key and event")
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
    parser.add_argument("--count", type=positive, metavar="N", help="stop after so many events")


def _command() -> NounCommand:
    command = NounCommand("event", "Events: what streams are made of. Needs a connection to the segment stores.")

    parser = command.action("append", _append, "Append each line of standard input; returns when all are durable.")
    add_stream(parser)
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--routing-key", metavar="KEY", help="of all events (default: none, and no order)")
    keys.add_argument("--key-separator", metavar="TEXT", help="lines are a routing key, this text, and the event")

    _add_reading(command.action("read", _read, "Show the events up to the tail as it is now."), "head")
    _add_reading(command.action("tail", _tail, "Show events as they come, until Ctrl-C or --count."), "tail")
    return command


main = _command()

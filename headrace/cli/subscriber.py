"""`headrace subscriber`: list, get, register, publish, unregister."""

from __future__ import annotations

import argparse
from typing import Any

from headrace.api.retention import SubscriberView
from headrace.cli.arguments import CUT_HELP, add_stream, checked, cut, number, stream_of
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.resource_command import ResourceCommand
from headrace.client import Headrace
from headrace.model.subscribers import check_subscriber_name

_name = checked(check_subscriber_name)


def _document(one: SubscriberView) -> dict[str, Any]:
    return {
        "subscriber": one.subscriber,
        "generation": one.generation,
        "cut": {str(segment): offset for segment, offset in one.offsets.items()},
        "updatedMs": one.updated_ms,
    }


def _position(one: SubscriberView) -> str:
    return ",".join(f"{segment}:{offset}" for segment, offset in one.offsets.items())


def _list(client: Headrace, options: argparse.Namespace) -> Outcome:
    found = client.admin.subscribers.list(*stream_of(options))
    rows = [(one.subscriber, one.generation, time_text(one.updated_ms), _position(one)) for one in found]
    document = {"subscribers": [_document(one) for one in found]}
    return Outcome(document, ("SUBSCRIBER", "GENERATION", "UPDATED", "NEEDS NOTHING BEFORE"), rows)


def _get(client: Headrace, options: argparse.Namespace) -> Outcome:
    return Outcome(_document(client.admin.subscribers.get(*stream_of(options), options.subscriber)))


def _register(client: Headrace, options: argparse.Namespace) -> Outcome:
    found = client.admin.subscribers.register(
        *stream_of(options), options.subscriber, generation=options.generation, start=options.start
    )
    return _position_outcome(options, found)


def _publish(client: Headrace, options: argparse.Namespace) -> Outcome:
    found = client.admin.subscribers.publish(
        *stream_of(options), options.subscriber, options.cut, generation=options.generation
    )
    return _position_outcome(options, found)


def _position_outcome(options: argparse.Namespace, found: SubscriberView) -> Outcome:
    text = f"{found.subscriber} needs no bytes of {options.stream} before {_position(found)}"
    return Outcome(_document(found), text=text)


def _unregister(client: Headrace, options: argparse.Namespace) -> Outcome:
    client.admin.subscribers.unregister(*stream_of(options), options.subscriber, generation=options.generation)
    document = {"subscriber": options.subscriber, "registered": False}
    return Outcome(document, text=f"retention of {options.stream} does not wait for {options.subscriber}")


def _add_subscriber(parser: argparse.ArgumentParser) -> None:
    add_stream(parser)
    parser.add_argument("subscriber", type=_name, metavar="GROUP", help="name of a reader group, or SCOPE/GROUP")


def _add_generation(parser: argparse.ArgumentParser, default: int | None) -> None:
    parser.add_argument(
        "--generation",
        type=number,
        default=default,
        metavar="N",
        help=f"generation of the reader group's configuration (default: {'any' if default is None else default})",
    )


def _command() -> ResourceCommand:
    command = ResourceCommand("subscriber", "Subscribers: reader groups that the retention of a stream waits for.")
    add_stream(command.action("list", _list, "List the subscribers of a stream by name."))
    _add_subscriber(command.action("get", _get, "Show how far a subscriber has read."))

    parser = command.action("register", _register, "Make retention wait for a reader group.")
    _add_subscriber(parser)
    parser.add_argument("--start", type=cut, metavar="CUT", help=f"{CUT_HELP} (default: the head)")
    _add_generation(parser, 0)

    parser = command.action("publish", _publish, "Set the stream cut before which a reader group needs no data.")
    _add_subscriber(parser)
    parser.add_argument("cut", type=cut, metavar="CUT", help=CUT_HELP)
    _add_generation(parser, 0)

    parser = command.action("unregister", _unregister, "Stop retention from waiting for a reader group.")
    _add_subscriber(parser)
    _add_generation(parser, None)
    return command


main = _command()

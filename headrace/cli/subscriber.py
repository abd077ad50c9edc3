"""`headrace subscriber`: list, get, register, publish, unregister."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.api.retention import SubscriberView
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.parameters import CUT_HELP, CutArgument, StreamName, checked, cut, number
from headrace.cli.session import Session
from headrace.codec.places import segment_text
from headrace.model.subscribers import check_subscriber_name

app = new_app()

SubscriberName = Annotated[
    str,
    typer.Argument(
        parser=checked(check_subscriber_name),
        metavar="GROUP",
        help="name of a reader group, or SCOPE/GROUP",
        show_default=False,
    ),
]
Generation = Annotated[
    int, typer.Option(parser=number, metavar="N", help="generation of the reader group's configuration")
]


@action(app, "list", examples=["headrace subscriber list shop/orders"])
def list_(session: Session, stream: StreamName) -> Outcome:
    """List the subscribers of a stream by name."""
    views = session.client.admin.subscribers.list(*stream)
    rows = [(each.subscriber, each.generation, time_text(each.updated_ms), position_text(each)) for each in views]
    document = {"subscribers": [subscriber_document(each) for each in views]}
    return Outcome(document, ("SUBSCRIBER", "GENERATION", "UPDATED", "NEEDS NOTHING BEFORE"), rows)


@action(app, "get", examples=["headrace subscriber get shop/orders shop/billing"])
def get(session: Session, stream: StreamName, subscriber: SubscriberName) -> Outcome:
    """Show how far a subscriber has read."""
    view = session.client.admin.subscribers.get(*stream, subscriber)
    details = [
        ("subscriber", view.subscriber),
        ("generation", view.generation),
        ("needs nothing before", position_text(view)),
        ("updated", time_text(view.updated_ms)),
    ]
    return Outcome(subscriber_document(view), details=details)


@action(app, "register", examples=["headrace subscriber register shop/orders billing"])
def register(
    session: Session,
    stream: StreamName,
    subscriber: SubscriberName,
    start: Annotated[
        dict[int, int] | None,
        typer.Option(parser=cut, metavar="CUT", help=f"{CUT_HELP} (default: the head)", show_default=False),
    ] = None,
    generation: Generation = 0,
) -> Outcome:
    """Make retention wait for a reader group."""
    subscribers = session.client.admin.subscribers
    return _position(str(stream), subscribers.register(*stream, subscriber, generation=generation, start=start))


@action(app, "publish", examples=["headrace subscriber publish shop/orders billing 0@0:1024,1@0:2048"])
def publish(
    session: Session, stream: StreamName, subscriber: SubscriberName, cut: CutArgument, generation: Generation = 0
) -> Outcome:
    """Set the stream cut before which a reader group needs no data."""
    subscribers = session.client.admin.subscribers
    return _position(str(stream), subscribers.publish(*stream, subscriber, cut, generation=generation))


@action(app, "unregister", examples=["headrace subscriber unregister shop/orders billing"])
def unregister(
    session: Session,
    stream: StreamName,
    subscriber: SubscriberName,
    generation: Annotated[
        int | None,
        typer.Option(parser=number, metavar="N", help="only if it has this generation (default: any)"),
    ] = None,
) -> Outcome:
    """Stop retention from waiting for a reader group."""
    session.client.admin.subscribers.unregister(*stream, subscriber, generation=generation)
    document = {"subscriber": subscriber, "registered": False}
    return Outcome(document, text=f"retention of {stream} does not wait for {subscriber}")


def subscriber_document(subscriber: SubscriberView) -> dict[str, Any]:
    """A subscriber as JSON."""
    return {
        "subscriber": subscriber.subscriber,
        "generation": subscriber.generation,
        "cut": {str(segment): offset for segment, offset in subscriber.offsets.items()},
        "updatedMs": subscriber.updated_ms,
    }


def position_text(subscriber: SubscriberView) -> str:
    return ",".join(f"{segment_text(segment)}:{offset}" for segment, offset in subscriber.offsets.items())


def _position(stream: str, view: SubscriberView) -> Outcome:
    text = f"{view.subscriber} needs no bytes of {stream} before {position_text(view)}"
    return Outcome(subscriber_document(view), text=text)

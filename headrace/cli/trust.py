"""`headrace trust`: the authorities whose certificates the segment stores have."""

from __future__ import annotations

import typer

from headrace.cli.actions import action
from headrace.cli.outcome import Outcome
from headrace.cli.session import Session


def add_to(app: typer.Typer) -> None:
    action(app, "trust", examples=["headrace trust", "headrace trust --json"])(trust)


def trust(session: Session) -> Outcome | None:
    """Print the certificates of the authorities that have issued those of the segment stores, as PEM.

    This client fetches them by itself. Pravega's clients need them as a file.
    """
    bundle = session.client.admin.trust.authorities()
    if session.json:
        return Outcome({"certificates": list(bundle.certificates)})
    print(bundle.pem, end="")
    return None

"""`headrace quickstart`: the first commands to try, for the running stack."""

from __future__ import annotations

import shlex

import typer

from headrace.cli.actions import action
from headrace.cli.outcome import Outcome
from headrace.cli.session import URL_DEFAULT, URL_VARIABLE, Session

COMMANDS = (
    "headrace scope create shop --exist-ok",
    "headrace stream create shop/orders --segments 2 --exist-ok",
    "seq 1 1000 | headrace event write shop/orders",
    "headrace event read shop/orders --count 5",
    "headrace stream describe shop/orders",
)
"""The README has the same ones."""


def add_to(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    action(app, "quickstart", examples=["headrace quickstart", "headrace quickstart | sh -e"])(quickstart)


def quickstart(session: Session) -> Outcome | None:
    """Print five commands that create a stream, write to it and read it, for the stack that runs now."""
    session.client.admin.list_scopes()  # Tells now, and not five commands later, that no controller answers.
    url = session.shared.controller_url
    lines = [*([] if url == URL_DEFAULT else [f"export {URL_VARIABLE}={shlex.quote(url)}"]), *COMMANDS]
    if session.json:
        return Outcome({"url": url, "commands": list(COMMANDS)})
    print("\n".join(lines))
    return None

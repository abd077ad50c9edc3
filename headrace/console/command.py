"""`headrace console`: serve the web console on loopback until Ctrl-C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.cli.actions import action, new_app, only_command
from headrace.cli.outcome import ExitCode
from headrace.cli.parameters import checked, parse_port
from headrace.cli.session import Session
from headrace.client.http_api import shown_url
from headrace.console.server import EXTRA_MISSING, ConsoleServer, is_installed
from headrace.console.static_files import static_file

EXAMPLES = (
    "headrace console",
    "headrace console --port 8080",
    "headrace console --allow-changes",
    "headrace console --url https://a1b2c3.execute-api.eu-west-1.amazonaws.com --auth aws-iam",
)
Port = Annotated[
    int,
    typer.Option(
        parser=checked(parse_port),
        metavar="PORT",
        show_default=False,
        help="where to listen; 0: any free port (default 0)",
    ),
]
AllowChanges = Annotated[
    bool,
    typer.Option(
        "--allow-changes",
        help="let the pages split and merge segments, reset groups, and replay and drop dead letters",
    ),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is interrupted; returns the exit code."""
    app = new_app()
    action(app, "console", examples=EXAMPLES)(console)
    try:
        only_command(app)(args=None if arguments is None else list(arguments), prog_name="headrace console")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else ExitCode.DONE
    return ExitCode.DONE


def console(session: Session, port: Port = 0, allow_changes: AllowChanges = False) -> None:
    """Show streams, groups, tables and the cluster in a browser. Listens on loopback only."""
    if not is_installed():
        session.complain(EXTRA_MISSING)
        raise typer.Exit(ExitCode.USAGE)
    shared = session.shared
    server = ConsoleServer(
        shared.controller_url, auth=shared.auth, port=port, network=shared.network, allows_changes=allow_changes
    )
    server.start()
    may = "which may change it" if allow_changes else "read only"
    print(f"console of {shown_url(shared.controller_url)}, {may}, until Ctrl-C:\n{server.address}", flush=True)
    if static_file("htmx.min.js") is None:
        session.complain("pages do not refresh by themselves: run `make node_modules/.installed` first")
    try:
        while not server.wait(timeout_s=1.0):
            pass
    except KeyboardInterrupt:
        return
    finally:
        server.stop()
    session.complain(f"the server ended: {server.failure}")
    raise typer.Exit(ExitCode.REFUSED)

"""`headrace console`: serve the web console on loopback until Ctrl-C."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from headrace.cli.parameters import parse_port
from headrace.cli.session import URL_DEFAULT, URL_VARIABLE
from headrace.cli.standard_streams import print_message
from headrace.console.server import EXTRA_MISSING, ConsoleServer, is_installed
from headrace.console.static_files import static_file
from headrace.model.errors import InvalidRequestError

EXAMPLES = (
    "headrace console",
    "headrace console --port 8080",
    "headrace console --url https://a1b2c3.execute-api.eu-west-1.amazonaws.com --auth aws-iam",
)
_EXIT_FAILED, _EXIT_USAGE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is interrupted; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    if not is_installed():
        print_message(f"headrace console: {EXTRA_MISSING}")
        return _EXIT_USAGE
    url = chosen.url or os.environ.get(URL_VARIABLE) or URL_DEFAULT
    server = ConsoleServer(url, auth=chosen.auth, port=chosen.port, network=chosen.network)
    server.start()
    print(f"console of {url}, read only, until Ctrl-C:\n{server.address}", flush=True)
    if static_file("htmx.min.js") is None:
        print_message("headrace console: pages do not refresh by themselves: run `make node_modules/.installed` first")
    try:
        while not server.wait(timeout_s=1.0):
            pass
    except KeyboardInterrupt:
        return 0
    finally:
        server.stop()
    print_message(f"headrace console: the server ended: {server.failure}")
    return _EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace console",
        description="Show streams, groups, tables and the cluster in a browser. Listens on loopback only.",
        epilog="\n".join(("examples:", *(f"  {example}" for example in EXAMPLES))),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--url", metavar="URL", help=f"URL of the controller (default: {URL_VARIABLE}, then {URL_DEFAULT})"
    )
    parser.add_argument(
        "--auth", choices=("aws-iam",), help="sign requests with AWS credentials (default: do not sign)"
    )
    parser.add_argument(
        "--network",
        choices=("vpc", "external"),
        help="external: reach the segment stores through the load balancer outside their network (default: "
        "HEADRACE_NETWORK, then vpc)",
    )
    parser.add_argument(
        "--port", type=port_number, default=0, metavar="PORT", help="where to listen; 0: any free port (default 0)"
    )
    return parser


def port_number(text: str) -> int:
    """Parses an option of argparse: a port, or 0 for any free one."""
    try:
        return parse_port(text)
    except InvalidRequestError as error:
        raise argparse.ArgumentTypeError(error.message) from error

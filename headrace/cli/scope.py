"""`headrace scope`: create, list, get, delete."""

from __future__ import annotations

import argparse

from headrace.cli.arguments import add_no_wait, add_scope
from headrace.cli.outcome import Outcome
from headrace.cli.resource_command import ResourceCommand
from headrace.client import Headrace, NotFoundError


def _create(client: Headrace, options: argparse.Namespace) -> Outcome:
    client.admin.create_scope(options.scope, exist_ok=options.exist_ok)
    return Outcome({"scope": options.scope}, text=f"scope {options.scope} exists")


def _list(client: Headrace, options: argparse.Namespace) -> Outcome:
    scopes = client.admin.list_scopes()
    return Outcome({"scopes": [{"scope": scope} for scope in scopes]}, ("SCOPE",), [(scope,) for scope in scopes])


def _get(client: Headrace, options: argparse.Namespace) -> Outcome:
    if not client.admin.scope_exists(options.scope):
        raise NotFoundError(f"there is no scope {options.scope}")
    return Outcome({"scope": options.scope})


def _delete(client: Headrace, options: argparse.Namespace) -> Outcome:
    waits = not (options.recursive and options.no_wait)
    client.admin.delete_scope(options.scope, recursive=options.recursive, wait=waits)
    text = f"scope {options.scope} is {'' if waits else 'being '}deleted"
    return Outcome({"scope": options.scope, "deleted": waits}, text=text)


def _command() -> ResourceCommand:
    command = ResourceCommand("scope", "Scopes: namespaces of streams, reader groups and tables.")
    parser = command.action("create", _create, "Create a scope.")
    add_scope(parser)
    parser.add_argument("--exist-ok", action="store_true", help="succeed if the scope exists")
    command.action("list", _list, "List scopes by name.")
    add_scope(command.action("get", _get, "Check that a scope exists."))
    parser = command.action("delete", _delete, "Delete an empty scope, or with --recursive a scope and its contents.")
    add_scope(parser)
    parser.add_argument("--recursive", action="store_true", help="also delete its reader groups, streams and tables")
    add_no_wait(parser)
    return command


main = _command()

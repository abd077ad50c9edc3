"""`headrace scope`: create, list, get, delete."""

from __future__ import annotations

import argparse

from headrace.cli.arguments import add_no_wait, add_scope
from headrace.cli.noun import NounCommand
from headrace.cli.outcome import Outcome
from headrace.client import Headrace, NotFoundError


def _create(client: Headrace, options: argparse.Namespace) -> Outcome:
    client.admin.create_scope(options.scope, exist_ok=options.exist_ok)
    return Outcome({"scope": options.scope}, text=f"scope {options.scope} is there")


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


def _command() -> NounCommand:
    command = NounCommand("scope", "Scopes: what streams, reader groups and tables lie in.")
    parser = command.action("create", _create, "Create a scope.")
    add_scope(parser)
    parser.add_argument("--exist-ok", action="store_true", help="succeed if it exists")
    command.action("list", _list, "List scopes by name.")
    add_scope(command.action("get", _get, "Say whether a scope is there."))
    parser = command.action("delete", _delete, "Delete an empty scope, or one with everything in it.")
    add_scope(parser)
    parser.add_argument("--recursive", action="store_true", help="with all its reader groups, streams and tables")
    add_no_wait(parser)
    return command


main = _command()

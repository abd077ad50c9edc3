"""`headrace scope`: create, list, get, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome
from headrace.cli.parameters import NoWait, ScopeName
from headrace.cli.session import Session
from headrace.model.errors import NotFoundError

app = new_app()


@action(app, "create", examples=["headrace scope create shop"])
def create(
    session: Session,
    scope: ScopeName,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="succeed if the scope exists")] = False,
) -> Outcome:
    """Create a scope."""
    session.client.admin.create_scope(scope, exist_ok=exist_ok)
    return Outcome({"scope": scope}, text=f"scope {scope} {'exists' if exist_ok else 'created'}")


@action(app, "list", examples=["headrace scope list"])
def list_(session: Session) -> Outcome:
    """List scopes by name."""
    scopes = session.client.admin.list_scopes()
    return Outcome({"scopes": [{"scope": scope} for scope in scopes]}, ("SCOPE",), [(scope,) for scope in scopes])


@action(app, "get", examples=["headrace scope get shop"])
def get(session: Session, scope: ScopeName) -> Outcome:
    """Check that a scope exists."""
    if not session.client.admin.scope_exists(scope):
        raise NotFoundError(f"there is no scope {scope}", details={"scope": scope})
    return Outcome({"scope": scope})


@action(app, "delete", examples=["headrace scope delete shop --recursive"])
def delete(
    session: Session,
    scope: ScopeName,
    recursive: Annotated[
        bool, typer.Option("--recursive", help="also delete its reader groups, streams and tables")
    ] = False,
    no_wait: NoWait = False,
) -> Outcome:
    """Delete an empty scope, or with --recursive a scope and its contents."""
    waits = not (recursive and no_wait)
    session.client.admin.delete_scope(scope, recursive=recursive, wait=waits)
    text = f"scope {scope} is {'' if waits else 'being '}deleted"
    return Outcome({"scope": scope, "deleted": waits}, text=text)

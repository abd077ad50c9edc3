"""`headrace grpc-user`: the users of the gRPC bridge, in a file or in a secret. Needs no controller."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.adapters.grpc_user_storage import GrpcUserFile, GrpcUserSecret
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome
from headrace.cli.parameters import checked
from headrace.cli.session import Session
from headrace.codec.grpc_users import (
    LEVELS,
    PASSWORD_BYTES_MAX,
    SALT_BYTES,
    Grant,
    PasswordHash,
    User,
    Users,
    check_password,
    check_pattern,
    check_user_name,
    parse_users,
    users_text,
)
from headrace.model.errors import InvalidRequestError, NotFoundError
from headrace.ports.grpc_user_storage import GrpcUserStorage

FILE_VARIABLE = "HEADRACE_GRPC_USERS_FILE"
SECRET_VARIABLE = "HEADRACE_GRPC_USERS_SECRET"

app = new_app()


def _level(text: str) -> str:
    if text.upper() not in LEVELS:
        raise InvalidRequestError(f"{text[:100]!a} is not one of {', '.join(LEVELS)}")
    return text.upper()


UserName = Annotated[str, typer.Argument(parser=checked(check_user_name), metavar="USER")]
Resource = Annotated[
    str,
    typer.Argument(
        parser=checked(check_pattern),
        metavar="RESOURCE",
        help="a resource of Pravega, such as prn::/scope:shop/stream:orders; * at the end matches any rest",
    ),
]
Permission = Annotated[
    str, typer.Argument(parser=checked(_level), metavar="READ|READ_UPDATE", help="READ_UPDATE includes READ")
]
File = Annotated[
    Path | None, typer.Option("--file", metavar="PATH", help=f"the file with the users (default: {FILE_VARIABLE})")
]
Secret = Annotated[
    str | None,
    typer.Option("--secret", metavar="ID", help=f"the secret with the users instead (default: {SECRET_VARIABLE})"),
]


@action(
    app,
    "add",
    examples=[
        "headrace grpc-user add ann --file users.json",
        "cat password.txt | headrace grpc-user add ann --secret headrace/grpc-users",
    ],
)
def add(
    session: Session,
    user: UserName,
    change_password: Annotated[
        bool, typer.Option("--change-password", help="give a user who exists another password, and keep the grants")
    ] = False,
    file: File = None,
    secret: Secret = None,
) -> Outcome:
    """Add a user without grants. Asks for the password; without a terminal, reads it from standard input."""
    storage = _storage(file, secret)
    users = _users_or_none(storage) or Users({})
    known = users.named(user) if change_password else None
    if known is None:
        # Before the question for the password, which would be for nothing.
        users.added(User(user, PasswordHash(b"", b"")))
    password = PasswordHash.of(_password(session), os.urandom(SALT_BYTES))
    users = users.replaced(User(user, password, () if known is None else known.grants))
    storage.write(users_text(users))
    return Outcome({"user": user}, text=f"user {user} {'is added' if known is None else 'has another password'}")


@action(
    app,
    "grant",
    examples=[
        'headrace grpc-user grant ann "prn::/scope:shop" READ --file users.json',
        'headrace grpc-user grant ann "prn::/scope:shop/*" READ_UPDATE --file users.json',
    ],
)
def grant(
    session: Session,
    user: UserName,
    resource: Resource,
    permission: Permission,
    file: File = None,
    secret: Secret = None,
) -> Outcome:
    """Grant a user access to a resource, in place of an earlier grant for the same resource."""
    storage = _storage(file, secret)
    users = parse_users(storage.read())
    changed = users.named(user).with_grant(Grant(resource, LEVELS[permission]))
    storage.write(users_text(users.replaced(changed)))
    return Outcome(
        {"user": user, "resource": resource, "permission": permission},
        text=f"user {user} has {permission} on {resource}",
    )


@action(app, "revoke", examples=['headrace grpc-user revoke ann "prn::/scope:shop/*" --file users.json'])
def revoke(session: Session, user: UserName, resource: Resource, file: File = None, secret: Secret = None) -> Outcome:
    """Remove the grant for exactly this resource. Bridges notice it within a minute."""
    storage = _storage(file, secret)
    users = parse_users(storage.read())
    storage.write(users_text(users.replaced(users.named(user).without_grant(resource))))
    return Outcome(
        {"user": user, "resource": resource},
        text=f"the grant is removed; tokens that user {user} has for the segment stores end by themselves",
    )


@action(app, "remove", examples=["headrace grpc-user remove ann --file users.json"])
def remove(session: Session, user: UserName, file: File = None, secret: Secret = None) -> Outcome:
    """Remove a user with all grants. Bridges notice it within a minute."""
    storage = _storage(file, secret)
    storage.write(users_text(parse_users(storage.read()).without(user)))
    return Outcome({"user": user}, text=f"user {user} is removed")


@action(app, "list", examples=["headrace grpc-user list --file users.json"])
def list_(session: Session, file: File = None, secret: Secret = None) -> Outcome:
    """List users with their grants."""
    users = sorted(parse_users(_storage(file, secret).read()).by_name.values(), key=lambda user: user.name)
    document = {
        "users": [
            {
                "user": user.name,
                "grants": [{"resource": each.resource, "permission": each.access.name} for each in user.grants],
            }
            for user in users
        ]
    }
    rows = [(user.name, each.resource, each.access.name) for user in users for each in user.grants] + [
        (user.name, "", "") for user in users if not user.grants
    ]
    return Outcome(document, ("USER", "RESOURCE", "PERMISSION"), sorted(rows))


def _storage(file: Path | None, secret: str | None) -> GrpcUserStorage:
    if file is not None and secret is not None:
        raise typer.BadParameter("--file and --secret exclude each other: name one of them")
    if file is None and secret is None:
        path, secret = os.environ.get(FILE_VARIABLE), os.environ.get(SECRET_VARIABLE) or None
        file = Path(path) if path else None
    if file is not None:
        return GrpcUserFile(file)
    if secret is None:
        raise typer.BadParameter("expected --file PATH or --secret ID")
    return GrpcUserSecret(secret)


def _users_or_none(storage: GrpcUserStorage) -> Users | None:
    try:
        return parse_users(storage.read())
    except NotFoundError:
        return None


def _password(session: Session) -> bytes:
    """Never an argument: other users of the machine see those of all processes."""
    if sys.stdin.isatty():
        text: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return check_password(text.encode())
    # One byte more than allowed, so that a longer one is refused and not cut.
    return check_password(session.read_line(PASSWORD_BYTES_MAX + 3))

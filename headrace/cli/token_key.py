"""`headrace token-key`: rotate, revoke, list. They change the keys where they are stored, without the API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.session import Session
from headrace.model.errors import InvalidRequestError
from headrace.topology import TOKEN_KEYS_SECRET

if TYPE_CHECKING:
    from headrace.adapters.token_key_editors import TokenKeyEditor
    from headrace.codec.delegation_tokens import TokenKeys
    from headrace.ports.clock import Clock

app = new_app()

_COLUMNS = ("KEY", "STATE", "SIGNS FROM", "VERIFIES UNTIL")

KeysFile = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="PATH", help="file with the keys, as `headrace up --tokens` makes it", show_default=False
    ),
]
KeysSecret = Annotated[
    str | None,
    typer.Option(
        "--secret",
        metavar="ID",
        help=f"id or ARN of the secret with the keys; that of a deployment is {TOKEN_KEYS_SECRET}",
        show_default=False,
    ),
]
KeyId = Annotated[str, typer.Argument(metavar="KID", help="its id, from `headrace token-key list`", show_default=False)]


@action(
    app,
    "rotate",
    examples=[
        f"headrace token-key rotate --secret {TOKEN_KEYS_SECRET}",
        "headrace token-key rotate --file data/token-keys.json",
    ],
)
def rotate(session: Session, file: KeysFile = None, secret: KeysSecret = None) -> Outcome:
    """Add a key. It signs after 30 minutes, the first one at once; later the older keys end. No client notices."""
    from headrace.adapters.token_key_editors import rotate
    from headrace.adapters.token_keys import LIFE_MAX_S

    # For the longest lifetime that a deployment can have, so that no key ends before the tokens that it has signed.
    keys = rotate(_editor(file, secret), _clock(), LIFE_MAX_S)
    return _shown(keys, [("new key", keys.keys[-1].key_id)])


@action(
    app,
    "revoke",
    examples=[
        f"headrace token-key revoke 2026-11-22-0a1b2c --secret {TOKEN_KEYS_SECRET}",
        "headrace token-key revoke 2026-11-22-0a1b2c --file data/token-keys.json",
    ],
)
def revoke(session: Session, key: KeyId, file: KeysFile = None, secret: KeysSecret = None) -> Outcome:
    """Remove a key: within five minutes all tokens that it has signed are refused. Some key always signs."""
    from headrace.adapters.token_key_editors import revoke

    return _shown(revoke(_editor(file, secret), key, _clock()), [("revoked key", key)])


@action(
    app,
    "list",
    examples=[
        f"headrace token-key list --secret {TOKEN_KEYS_SECRET}",
        "headrace token-key list --file data/token-keys.json",
    ],
)
def list_(session: Session, file: KeysFile = None, secret: KeysSecret = None) -> Outcome:
    """List the keys and what each does now. Their secrets are never shown."""
    return _shown(_editor(file, secret).read(), [])


def _editor(file: Path | None, secret: str | None) -> TokenKeyEditor:
    from headrace.adapters.token_key_editors import TokenKeyFileEditor, TokenKeySecretEditor

    if (file is None) == (not secret):
        raise typer.BadParameter("give either --file or --secret")
    if file is not None:
        return TokenKeyFileEditor(file)
    return TokenKeySecretEditor(str(secret), _secrets_client())


def _secrets_client() -> object:
    try:
        from botocore.exceptions import NoRegionError

        from headrace.adapters.token_keys import secrets_client
    except ImportError as error:
        raise InvalidRequestError("--secret needs botocore: install headrace[aws-auth]") from error
    try:
        return secrets_client()
    except NoRegionError as error:
        raise InvalidRequestError("no AWS region is configured: set AWS_REGION") from error


def _clock() -> Clock:
    from headrace.adapters.system_clock import SystemClock

    return SystemClock()


def _shown(keys: TokenKeys | None, details: list[tuple[str, str]]) -> Outcome:
    from headrace.codec.delegation_tokens import key_states

    states = key_states(keys, _clock().now_ms() / 1_000)
    rows = [
        (state.key_id, state.state, time_text(state.signs_from_s * 1_000), _end_text(state.verifies_until_s))
        for state in states
    ]
    document = {"keys": [state.to_json() for state in states]} | {name.replace(" k", "K"): kid for name, kid in details}
    return Outcome(document, _COLUMNS, rows, details=details)


def _end_text(end_s: int | None) -> str | None:
    return None if end_s is None else time_text(end_s * 1_000)

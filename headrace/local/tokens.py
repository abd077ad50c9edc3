"""Delegation tokens of the local stack: the keys in its data directory, and the variables that tell its parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.adapters.token_key_editors import TokenKeyFileEditor, rotate
from headrace.adapters.token_keys import KEYS_FILE, KEYS_SECRET, LIFE_MAX_S
from headrace.bridge.config import USERS_FILE, USERS_SECRET
from headrace.deployment_defaults import TOKENS_OFF, TOKENS_REQUIRED, TOKENS_VARIABLE
from headrace.local.failures import EXIT_USAGE, LocalStackError
from headrace.model.errors import HeadraceError
from headrace.ports.clock import Clock

KEYS_NAME = "token-keys.json"
USERS_NAME = "grpc-users.json"


@dataclass(frozen=True, slots=True)
class LocalTokens:
    """What the stack uses: `directory` None means no tokens."""

    directory: Path | None

    @property
    def environment(self) -> dict[str, str]:
        """The variables of functions, stores and the bridge. They replace those of the user's shell."""
        if self.directory is None:
            return {TOKENS_VARIABLE: TOKENS_OFF, KEYS_FILE: "", KEYS_SECRET: "", USERS_FILE: "", USERS_SECRET: ""}
        return {
            TOKENS_VARIABLE: TOKENS_REQUIRED,
            KEYS_FILE: str(self.directory / KEYS_NAME),
            KEYS_SECRET: "",
            USERS_FILE: str(self.directory / USERS_NAME),
            USERS_SECRET: "",
        }

    @property
    def line(self) -> str:
        """The line about tokens in what the stack prints when it has started."""
        return "off" if self.directory is None else f"required (keys {self.directory / KEYS_NAME})"

    @property
    def note(self) -> str:
        """What a user of Pravega's clients must know; empty if they have users or need none."""
        if self.directory is None or (self.directory / USERS_NAME).exists():
            return ""
        return f"note: Pravega's own clients are refused: there are no users in {self.directory / USERS_NAME}"


def local_tokens(directory: Path, clock: Clock, *, wanted: bool) -> LocalTokens:
    """The tokens of a stack with this data directory. The first start with tokens makes a key, which stays there.

    Raises:
        LocalStackError: the keys that are there cannot be used; exit code 2.
    """
    if not wanted:
        return LocalTokens(None)
    editor = TokenKeyFileEditor((directory / KEYS_NAME).resolve())
    try:
        if editor.read() is None:
            rotate(editor, clock, LIFE_MAX_S)
    except HeadraceError as error:
        raise LocalStackError(error.message, exit_code=EXIT_USAGE) from error
    return LocalTokens(directory.resolve())

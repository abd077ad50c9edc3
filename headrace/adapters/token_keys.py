"""The settings of delegation tokens, which every process of a deployment reads from its environment.

| variable | meaning | default |
|---|---|---|
| HEADRACE_TOKENS | off: stores look at no token; required: each request needs one | off |
| HEADRACE_TOKEN_KEYS_FILE | path of the keys' JSON text, of mode 600 | one of both is required |
| HEADRACE_TOKEN_KEYS_SECRET | id or ARN of a secret with that text | with `required` |
| HEADRACE_TOKEN_LIFE_S | lifetime of a token, 60 to 3600 s | 600 |
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.adapters.token_key_file import TokenKeyFile
from headrace.adapters.token_key_secret import TokenKeySecret
from headrace.model.errors import InvalidRequestError
from headrace.ports.clock import Clock
from headrace.ports.token_keys import TokenKeySource

TOKENS: Final = "HEADRACE_TOKENS"
KEYS_FILE: Final = "HEADRACE_TOKEN_KEYS_FILE"
KEYS_SECRET: Final = "HEADRACE_TOKEN_KEYS_SECRET"
LIFE: Final = "HEADRACE_TOKEN_LIFE_S"

OFF: Final = "off"
REQUIRED: Final = "required"

LIFE_DEFAULT_S: Final = 600
LIFE_MIN_S: Final = 60
LIFE_MAX_S: Final = 3_600


def token_key_source(environment: Mapping[str, str], clock: Clock) -> TokenKeySource | None:
    """The source of the keys, of which nothing is read yet. None if tokens are off.

    Raises:
        InvalidRequestError: a variable is missing or wrong; the message names it.
    """
    mode = environment.get(TOKENS, "") or OFF
    if mode == OFF:
        return None
    if mode != REQUIRED:
        raise InvalidRequestError(f"{TOKENS} is {mode!r}, expected {OFF} or {REQUIRED}")
    path, secret = environment.get(KEYS_FILE, ""), environment.get(KEYS_SECRET, "")
    if bool(path) == bool(secret):
        found = "both are set" if path else "none is set"
        raise InvalidRequestError(f"{TOKENS} is {REQUIRED}: set either {KEYS_FILE} or {KEYS_SECRET}; {found}")
    return TokenKeyFile(Path(path)) if path else TokenKeySecret(secret, clock)


def token_life_s(environment: Mapping[str, str]) -> int:
    """The lifetime of the tokens that a process issues, in seconds.

    Raises:
        InvalidRequestError: the variable is wrong.
    """
    value = environment.get(LIFE, "")
    if not value:
        return LIFE_DEFAULT_S
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and LIFE_MIN_S <= int(value) <= LIFE_MAX_S):
        raise InvalidRequestError(f"{LIFE} is {value!r}, expected {LIFE_MIN_S} to {LIFE_MAX_S} seconds")
    return int(value)

"""The settings of delegation tokens, which every process of a deployment reads from its environment.

| variable | meaning | default |
|---|---|---|
| HEADRACE_TOKENS | off: stores look at no token; required: each request needs one | off |
| HEADRACE_TOKEN_KEYS_FILE | path of the keys' JSON text, of mode 600 | one of both is required |
| HEADRACE_TOKEN_KEYS_SECRET | id or ARN of a secret with that text | with `required` |
| HEADRACE_TOKEN_LIFE_S | lifetime of a token, 60 to 3600 s | 600 |
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.adapters.token_key_secret import TokenKeySecret
from headrace.codec.delegation_tokens import TokenKeys, parse_token_keys
from headrace.model.errors import CorruptError, HeadraceError, IllegalStateError, InvalidRequestError
from headrace.ports.clock import Clock
from headrace.ports.token_keys import TokenKeySource

# Token keys in a file that only its owner may read, as a local stack has them.

_log = logging.getLogger(__name__)

_Version = tuple[int, int, int, int]


class TokenKeyFile:
    """`ports.token_keys.TokenKeySource` over a file, which is read again when it has changed.

    The file is replaced as a whole, by a rename.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._version: _Version | None = None
        self._keys: TokenKeys | None = None
        self._reported = ""

    def keys(self) -> TokenKeys:
        """As the port says. Each call looks at the file's times, and takes microseconds."""
        with self._lock:
            try:
                self._keys = self._read_if_changed(self._keys)
                self._reported = ""
            except HeadraceError as error:
                if self._keys is None:
                    raise
                self._report(error)
            return self._keys

    def _report(self, error: HeadraceError) -> None:
        """Log an error, but not again for each call."""
        if error.message != self._reported:
            self._reported = error.message
            _log.warning("event=token_keys_not_read path=%r error=%r", str(self._path), error.message)

    def _read_if_changed(self, known: TokenKeys | None) -> TokenKeys:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                version = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
                if known is not None and version == self._version:
                    return known
                if stat.S_IMODE(found.st_mode) & 0o077:
                    raise IllegalStateError(
                        f"the token keys in {self._path} can be read by other users: set its mode to 600"
                    )
                text = file.read().decode("ascii")
        except OSError as error:
            raise IllegalStateError(
                f"the token keys in {self._path} cannot be read: {error.strerror or type(error).__name__}"
            ) from error
        except UnicodeDecodeError:
            # The cause is not shown: it has the bytes.
            raise CorruptError(f"the token keys in {self._path} are not ASCII text") from None
        keys = parse_token_keys(text)
        self._version = version
        return keys


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

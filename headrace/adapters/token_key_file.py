"""Token keys in a file that only its owner may read, as a local stack has them."""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path

from headrace.codec.delegation_tokens import TokenKeys, parse_token_keys
from headrace.model.errors import CorruptError, HeadraceError, IllegalStateError

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

"""Whether a segment store wants its peers to use TLS, and the names in its certificate."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from headrace.certificate_names import is_store_label

NAME_CHARACTERS_MAX: Final = 253
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})+")


class TlsMode(StrEnum):
    """The three steps of a migration: `off`, `permissive` for some time, `required`."""

    OFF = "off"
    PERMISSIVE = "permissive"
    REQUIRED = "required"

    @property
    def accepts_plaintext(self) -> bool:
        return self is not TlsMode.REQUIRED

    @property
    def accepts_tls(self) -> bool:
        return self is not TlsMode.OFF


def is_tls_name(name: str) -> bool:
    """Whether it is a DNS name in lower case with two labels or more, such as `store-0.headrace.internal`."""
    return len(name) <= NAME_CHARACTERS_MAX and _DNS_NAME.fullmatch(name) is not None


def is_store_name(name: str, own: str) -> bool:
    """Whether a certificate's `name` is that of a segment store of the deployment in which `own` is a store's name."""
    label, _, domain = name.partition(".")
    return is_store_label(label) and domain == own.partition(".")[2]

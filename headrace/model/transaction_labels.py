"""Labels of transactions: a text that a writer gives a transaction, to find it again without its id.

Labels whose transactions belong to a numbered epoch have the form `<prefix>/<epoch>` or `<prefix>/<epoch>/<anything>`.
"""

from __future__ import annotations

import re

from headrace.model.errors import InvalidRequestError

LABEL_CHARACTERS_MAX = 256
LABEL_ALPHABET = "the letters A-Z and a-z, the digits, '.', ':', '_', '/' and '-'"
_LABEL = re.compile(r"[A-Za-z0-9._:/\-]{1,256}")
_EPOCH = re.compile(r"(0|[1-9][0-9]*)(/.*)?")


def check_label(label: str, what: str = "label") -> str:
    """A label, or the beginning of one. Raises InvalidRequestError, code "invalid_label"."""
    if not _LABEL.fullmatch(label):
        raise InvalidRequestError(
            f"{label[:100]!a} cannot be the {what} of a transaction: use 1 to {LABEL_CHARACTERS_MAX} of "
            f"{LABEL_ALPHABET}",
            code="invalid_label",
        )
    return label


def has_prefix(label: str | None, prefix: str) -> bool:
    return label is not None and label.startswith(prefix)


def labelled_epoch(label: str | None, prefix: str) -> int | None:
    """The epoch in a label of the form `<prefix>/<epoch>` or `<prefix>/<epoch>/...`, None for any other label."""
    if label is None or not label.startswith(f"{prefix}/"):
        return None
    found = _EPOCH.fullmatch(label, len(prefix) + 1)
    return int(found[1]) if found else None

"""Stored formats by release: which release writes one, which reads it, and what waits for `headrace upgrade finalize`.

During an upgrade processes of two releases work on the same data, and a rollback brings the former release back. A
format that the former release does not read is therefore gated: it is not written before an operator has finalized the
upgrade. Afterwards the former release is refused. A release is named by its first two numbers, as `0.3`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headrace.model.errors import IllegalStateError

RELEASE: Final = "0.3"
"""Of this code: that of its version, or the next one while it is in development."""

FIRST_RELEASE: Final = "0.2"
"""The first release whose formats later ones read. It records no release."""

NOT_FINALIZED: Final = "upgrade_not_finalized"
RELEASE_REFUSED: Final = "release_too_old"
_RELEASE_TEXT: Final = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """One format. `readable_since` is the first release that reads it, `written_since` the first that writes it.

    `is_gated`: it is written only after an upgrade to `written_since` is finalized.
    """

    name: str
    number: str
    place: str
    written_since: str
    readable_since: str
    is_gated: bool = False


FROZEN_STREAMS: Final = "states of frozen streams"
COMMIT_NOTES: Final = "notes of commit sets"
NAMES_WITH_UNDERSCORES: Final = "names with '_' inside"

FORMATS: Final = (
    StoredFormat("journal file", "3", "volume", "0.2", "0.2"),
    StoredFormat("replica identity", "1", "volume", "0.2", "0.2"),
    StoredFormat("log object", "1", "S3", "0.2", "0.2"),
    StoredFormat("container snapshot", "1", "S3", "0.2", "0.2"),
    StoredFormat("segment records of a snapshot", "2", "S3", "0.2", "0.2"),
    StoredFormat("time block", "1", "S3", "0.2", "0.2"),
    StoredFormat("metadata record", "1", "DynamoDB", "0.2", "0.2"),
    StoredFormat("setting that names the finalized release", "2", "DynamoDB", "0.3", "0.3", is_gated=True),
    StoredFormat(FROZEN_STREAMS, "", "DynamoDB", "0.3", "0.3", is_gated=True),
    StoredFormat(COMMIT_NOTES, "", "DynamoDB", "0.3", "0.3", is_gated=True),
    StoredFormat(NAMES_WITH_UNDERSCORES, "", "DynamoDB", "0.3", "0.3", is_gated=True),
)
"""The table of `docs/operating/upgrades.md`. Tests compare the numbers with those in the code."""

_GATED: Final = {each.name: each.written_since for each in FORMATS if each.is_gated}


def is_release(text: object) -> bool:
    return isinstance(text, str) and _RELEASE_TEXT.fullmatch(text) is not None


def release_order(release: str) -> tuple[int, int]:
    """What releases are compared by; `0.10` is later than `0.9`."""
    major, minor = release.split(".")
    return int(major), int(minor)


def may_write(name: str, finalized: str) -> bool:
    """Whether a gated format may be written in a deployment that is finalized for this release."""
    return release_order(finalized) >= release_order(_GATED[name])


def formats_waiting(finalized: str) -> tuple[str, ...]:
    """The gated formats that this release would write, and that the deployment does not allow yet."""
    return tuple(name for name in _GATED if not may_write(name, finalized))


def check_may_write(name: str, finalized: str) -> None:
    """Raises IllegalStateError, code "upgrade_not_finalized": the format is not allowed yet."""
    if not may_write(name, finalized):
        since = _GATED[name]
        raise IllegalStateError(
            f"{name} need release {since}, and this deployment can still be rolled back to {finalized}: "
            "run `headrace upgrade finalize` when no process of the former release runs any more",
            details={"format": name, "finalized": finalized, "release": since},
            code=NOT_FINALIZED,
        )


def check_release(finalized: str) -> None:
    """Raises IllegalStateError, code "release_too_old": the deployment is finalized for a later release than this."""
    if release_order(finalized) > release_order(RELEASE):
        raise IllegalStateError(
            f"this deployment is finalized for release {finalized}, and this is release {RELEASE}, which cannot read "
            f"all that is stored: deploy release {finalized} or a later one",
            details={"finalized": finalized, "release": RELEASE},
            code=RELEASE_REFUSED,
        )

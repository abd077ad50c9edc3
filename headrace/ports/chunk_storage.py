"""Tier 2: immutable objects, created once, read by range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from headrace.model.errors import UnavailableError

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Short-lived links with which a reader fetches part of a tier-2 object straight from S3.


@dataclass(frozen=True, slots=True)
class ChunkLink:
    """A GET of `url` with exactly the headers `headers` (the signed Range among them) returns the bytes."""

    url: str
    headers: dict[str, str]
    expires_at_ms: int


class ChunkLinks(Protocol):
    """Makes links; needs no network."""

    def link(self, object_name: str, position: int, length: int) -> ChunkLink:
        """Sign a ranged GET; the Range header is part of the signature. No request is made."""
        ...


CHUNK_STORAGE_REFUSED: Final = "chunk_storage_refused"
"""The code of an UnavailableError when tier 2 did answer, but refused: credentials, policies, clocks, broken bytes."""


def chunk_storage_refused(what: str, cause: str) -> UnavailableError:
    """The error for a refusal with the code `cause` of tier 2."""
    return UnavailableError(
        f"{what}: chunk storage refused: {cause}", details={"cause": cause}, code=CHUNK_STORAGE_REFUSED
    )


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of tier 2 as a listing shows it; `length` in bytes."""

    name: str
    length: int
    last_modified_ms: int


class ChunkStorage(Protocol):
    """A flat name space of immutable objects.

    Any call may raise ThrottledError or UnavailableError, the latter with CHUNK_STORAGE_REFUSED if it was refused.
    """

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Create the object from the concatenated parts.

        Raises:
            AlreadyExistsError: the name is taken; nothing changed.
            InvalidRequestError: no object can have this name or length.
            ThrottledError, UnavailableError: try again later; the object may or may not exist.
        """
        ...

    async def read(self, name: str, position: int, length: int) -> bytes:
        """Exactly `length` bytes at `position`.

        Raises:
            NotFoundError: there is no such object, or it is shorter than asked.
        """
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Remove; names that do not exist are fine."""
        ...

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[StoredObject]:
        """Objects whose names start with `prefix`, in name order, after the name `after`."""
        ...

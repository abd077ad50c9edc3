"""What the controller answers, as values; and the checks that it answered what its contract says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.model.errors import CorruptError


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` bytes of a segment from `offset` on, to be had with a GET of `url` with exactly `headers`."""

    offset: int
    length: int
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    expires_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Chunks:
    """Contiguous chunks; tier 2 has the segment up to `stored_until`; `next_offset` continues, None at the end."""

    chunks: tuple[Chunk, ...]
    stored_until: int
    next_offset: int | None


T = TypeVar("T")


def parsed(parse: Callable[[Mapping[str, Any]], T], answer: Mapping[str, Any]) -> T:
    """`parse(answer)`; CorruptError if the answer lacks something or holds something else than expected."""
    try:
        return parse(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"the controller's answer is not as expected ({error!r}): {str(answer)[:300]}") from error


def chunks(answer: Mapping[str, Any]) -> Chunks:
    found = tuple(
        Chunk(int(one["offset"]), int(one["length"]), str(one["url"]), dict(one["headers"]), int(one["expiresAt"]))
        for one in answer["chunks"]
    )
    following = answer["next"]
    return Chunks(found, int(answer["storedUntil"]), None if following is None else int(following))

"""Checks that each routing key's events were read exactly as they were written: all of them, once, in order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class KeyedDigest:
    """A running digest over the events of each routing key; equal digests mean equal sequences."""

    _digests: dict[str, hashlib.blake2b] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, routing_key: str, payload: bytes) -> None:
        digest = self._digests.get(routing_key)
        if digest is None:
            digest = self._digests[routing_key] = hashlib.blake2b(digest_size=16)
        digest.update(len(payload).to_bytes(4, "big"))
        digest.update(payload)
        self._counts[routing_key] = self._counts.get(routing_key, 0) + 1

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts

    def differing_keys(self, other: KeyedDigest) -> list[str]:
        """Routing keys whose sequences differ, sorted."""
        keys = self._digests.keys() | other._digests.keys()
        return sorted(key for key in keys if self._digest(key) != other._digest(key))

    def _digest(self, key: str) -> bytes | None:
        digest = self._digests.get(key)
        return digest.digest() if digest else None

"""Writes that the metadata store of a world does not answer, and carries out later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from store_world import World

from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import Create, Delete, Key, Replace


class LateWrites:
    """From now on until `answer_again`, writes that have a `kind` at a key that is `meant` are kept instead."""

    def __init__(self, world: World, kind: type[Create | Delete | Replace], meant: Callable[[Key], bool]) -> None:
        self.kept: list[tuple[Any, ...]] = []
        self._world, self._kind, self._meant = world, kind, meant
        self._honest = world.metadata.write
        world.metadata.write = self._keep  # type: ignore[method-assign]

    def answer_again(self) -> None:
        self._world.metadata.write = self._honest  # type: ignore[method-assign]

    def take_effect(self) -> None:
        """Carries out the first one. Raises WriteConflictError as the store does."""
        self._honest(*self.kept[0])

    def _keep(self, *writes: Any) -> None:
        if any(isinstance(write, self._kind) and self._meant(write.key) for write in writes):
            self.kept.append(writes)
            raise UnavailableError("not answered")
        self._honest(*writes)

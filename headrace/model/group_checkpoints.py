"""Checkpoints of a reader group: positions on which all its readers agree. Pure values, with Pravega's rules.

A checkpoint begins with the positions of the segments without an owner. Each reader that was online then adds its own,
and until it has done so it may neither take nor release a segment. So the positions of a complete checkpoint are those
of all segments, each once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.names import StreamSegmentName

Positions = Mapping[StreamSegmentName, int]
"""Offset in bytes by segment, END_OF_SEGMENT for one that was read to its end."""

_SILENT = "_SILENT_"
"""Part of the name of a checkpoint that only collects positions: it is not where readers begin after a failure."""


def silent_checkpoint_name(unique: str) -> str:
    """The name of a checkpoint that only collects positions."""
    return f"{unique}{_SILENT}"


def is_silent(name: str) -> bool:
    return _SILENT in name


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints that a group keeps. `names` are in the order in which they began.

    `waiting_for` has the readers that a checkpoint waits for; a complete one is not in it. `last` are the positions of
    the newest complete checkpoint that is not silent, and `last_published` says whether the controller knows them.
    """

    names: tuple[str, ...] = ()
    waiting_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    positions: Mapping[str, Positions] = field(default_factory=dict)
    last: Positions | None = None
    last_published: bool = True

    @property
    def is_ongoing(self) -> bool:
        return bool(self.waiting_for)

    @property
    def outstanding(self) -> tuple[str, ...]:
        """Those that are neither silent nor complete."""
        return tuple(name for name in self.names if name in self.waiting_for and not is_silent(name))

    def next_of(self, reader: str) -> str | None:
        """The oldest checkpoint that waits for the reader."""
        return next((name for name in self.names if reader in self.waiting_for.get(name, ())), None)

    def complete_positions(self, name: str) -> Positions | None:
        """The positions of a complete checkpoint; None if it is not complete or no longer kept."""
        return None if name in self.waiting_for else self.positions.get(name)

    def check_may_begin(self, name: str, outstanding_max: int) -> None:
        """Check that a checkpoint which an application asks for may begin.

        Raises:
            InvalidRequestError: the group has a checkpoint of this name.
            IllegalStateError: code "too_many_checkpoints": `outstanding_max` are in progress.
        """
        if name in self.positions:
            raise InvalidRequestError(f"the group has a checkpoint {name!r} already: choose another name")
        if len(self.outstanding) >= outstanding_max:
            raise IllegalStateError(
                f"{outstanding_max} checkpoints of the group are in progress: wait for one, or cancel them",
                code="too_many_checkpoints",
            )

    def begun(self, name: str, readers: Collection[str], unassigned: Positions) -> Checkpoints:
        """After the begin of a checkpoint; a name that exists changes nothing.

        Without readers it is complete at once.
        """
        if name in self.positions:
            return self
        waiting = {**self.waiting_for, name: tuple(readers)} if readers else self.waiting_for
        positions = {**self.positions, name: dict(unassigned)}
        begun = replace(self, names=(*self.names, name), waiting_for=waiting, positions=positions)
        return begun if readers else begun._completed(name)

    def reached(self, name: str, reader: str, positions: Positions) -> Checkpoints:
        """After a reader has added its positions. A checkpoint that no longer waits for any reader is unchanged.

        Raises:
            IllegalStateError: the checkpoint does not wait for this reader.
        """
        readers = self.waiting_for.get(name)
        if readers is None:
            return self
        if reader not in readers:
            raise IllegalStateError(f"checkpoint {name!r} does not wait for reader {reader!r}")
        left = tuple(one for one in readers if one != reader)
        merged = {**self.positions, name: {**self.positions[name], **positions}}
        if left:
            return replace(self, waiting_for={**self.waiting_for, name: left}, positions=merged)
        waiting = {one: others for one, others in self.waiting_for.items() if one != name}
        return replace(self, waiting_for=waiting, positions=merged)._completed(name)

    def without_reader(self, reader: str, positions: Positions) -> Checkpoints:
        """After a reader has left: each checkpoint that waits for it gets these positions."""
        found = self
        for name in self.names:
            if reader in self.waiting_for.get(name, ()):
                found = found.reached(name, reader, positions)
        return found

    def cleared_before(self, name: str) -> Checkpoints:
        """Without the checkpoints that began before this one; unchanged if it is not kept."""
        if name not in self.names:
            return self
        return self._only(self.names[self.names.index(name) :])

    def without_outstanding(self) -> Checkpoints:
        """Without those that are neither silent nor complete."""
        dropped = self.outstanding
        return self._only(tuple(name for name in self.names if name not in dropped))

    def _completed(self, name: str) -> Checkpoints:
        """After the last reader has added its positions. A silent checkpoint is not where readers begin."""
        return self if is_silent(name) else replace(self, last=self.positions[name], last_published=False)

    def _only(self, kept: tuple[str, ...]) -> Checkpoints:
        return replace(
            self,
            names=kept,
            waiting_for={name: readers for name, readers in self.waiting_for.items() if name in kept},
            positions={name: found for name, found in self.positions.items() if name in kept},
        )

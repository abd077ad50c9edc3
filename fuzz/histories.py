"""What was asked of a segment store, and what it answered: all that a checker needs to know about the past.

Each block of data says who wrote it and which of the writer's blocks it is, so that the content of a segment can be
read back as a list of requests. Positions of requests are those of a clock that counts events, or always 0 where
nobody asks for an earlier moment than now.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeVar

BLOCK_MAGIC: Final = b"HRTB"
_BLOCK_HEADER: Final = struct.Struct(">4sQIII")
_EVENT_HEADER: Final = struct.Struct(">ii")
BLOCK_HEADER_BYTES: Final = _BLOCK_HEADER.size
NOW: Final = 1 << 62


_R = TypeVar("_R", bound="Request")


class Outcome(Enum):
    NOT_ASKED = "not asked"
    UNKNOWN = "unknown"
    DONE = "done"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Request:
    """Something that happens as a whole or not at all. `asked` and `answered` are positions of the clock."""

    asked: int
    answered: int = NOW
    done: bool = False

    def answer(self, position: int, *, done: bool) -> None:
        self.answered, self.done = position, done

    def forget_position(self, moment: int) -> None:
        """Let it be asked, and answered if it was by then, before everything that comes now."""
        self.asked = -1
        self.answered = -1 if self.answered <= moment else NOW

    def outcome(self, moment: int = NOW) -> Outcome:
        if self.asked >= moment:
            return Outcome.NOT_ASKED
        if self.answered > moment or self.answered == NOW:
            return Outcome.UNKNOWN
        return Outcome.DONE if self.done else Outcome.REFUSED


@dataclass(slots=True, eq=False)
class Append(Request):
    """Block `number` of a writer. `event`: stored with the header of an event before it. `end`: the segment's length
    behind it, if it was told; `expected_offset`: where a conditional append has to be."""

    number: int = 0
    payload_bytes: int = 0
    event_count: int = 1
    event: bool = False
    expected_offset: int | None = None
    end: int | None = None

    @property
    def stored_bytes(self) -> int:
        return BLOCK_HEADER_BYTES + self.payload_bytes + (_EVENT_HEADER.size if self.event else 0)


@dataclass(slots=True, eq=False)
class WriterHistory:
    """All appends of one writer to one segment. `tag` is unique among all writers of a history, and the writer's id."""

    tag: int
    segment: SegmentHistory
    appends: list[Append] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Truncation(Request):
    offset: int = 0


@dataclass(slots=True, eq=False)
class AttributeChange(Request):
    value: int = 0


@dataclass(slots=True, eq=False)
class Merge(Request):
    """`counted`: it also adds one to the target's count of merges, atomically."""

    sources: list[SegmentHistory] = field(default_factory=list)
    counted: bool = False


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a segment had when its history began: the bytes from `start` on, and its count of events."""

    start: int
    data: bytes
    event_count: int

    @property
    def length(self) -> int:
        return self.start + len(self.data)


@dataclass(slots=True, eq=False)
class SegmentHistory:
    """One life of a segment, from its creation on; a later life under the same name is another history.

    `inherited` is what was there before, if the history begins with an accepted loss.
    """

    name: str
    create: Request
    transient: bool = False
    inherited: Inherited = field(default_factory=lambda: Inherited(0, b"", 0))
    seal: Request | None = None
    delete: Request | None = None
    merged: Merge | None = None
    truncations: list[Truncation] = field(default_factory=list)
    changes: list[AttributeChange] = field(default_factory=list)
    writers: list[WriterHistory] = field(default_factory=list)
    merges: list[Merge] = field(default_factory=list)

    def requests(self) -> Iterator[Request]:
        yield self.create
        yield from (each for each in (self.seal, self.delete) if each is not None)
        yield from self.truncations
        yield from self.changes
        yield from self.merges
        for writer in self.writers:
            yield from writer.appends

    def known_ends(self) -> list[int]:
        """Offsets at which a block is known to end."""
        return sorted(a.end for writer in self.writers for a in writer.appends if a.end is not None)

    def without_later(self, moment: int) -> None:
        """Forget what was not asked before the moment; what was not answered by then has an unknown outcome."""
        self.seal = _asked(self.seal, moment)
        self.delete = _asked(self.delete, moment)
        self.merged = _asked(self.merged, moment)
        self.truncations = [each for each in self.truncations if each.asked < moment]
        self.changes = [each for each in self.changes if each.asked < moment]
        self.merges = [each for each in self.merges if each.asked < moment]
        for writer in self.writers:
            writer.appends = [each for each in writer.appends if each.asked < moment]
            for append in writer.appends:
                if append.answered > moment:
                    append.end = None
        for request in self.requests():
            request.forget_position(moment)


@dataclass(slots=True, eq=False)
class Batch(Request):
    """Changes of a table that happen together: keys with their new values, None for a removal. `versions` are those of
    the keys that got a value, once they were told."""

    changes: dict[bytes, bytes | None] = field(default_factory=dict)
    versions: dict[bytes, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class TableHistory:
    """One life of a table; its batches are asked one after the other."""

    name: str
    create: Request
    delete: Request | None = None
    batches: list[Batch] = field(default_factory=list)

    def without_later(self, moment: int) -> None:
        """As `SegmentHistory.without_later`."""
        self.delete = _asked(self.delete, moment)
        self.batches = [each for each in self.batches if each.asked < moment]
        for batch in self.batches:
            if batch.answered > moment:
                batch.versions = {}
        for request in (self.create, self.delete, *self.batches):
            if request is not None:
                request.forget_position(moment)


@dataclass(slots=True)
class History:
    """All segments and tables that ever were, and the number of the next writer."""

    segments: list[SegmentHistory] = field(default_factory=list)
    tables: list[TableHistory] = field(default_factory=list)
    next_tag: int = 1

    def new_tag(self) -> int:
        self.next_tag += 1
        return self.next_tag - 1

    def forget_later(self, moment: int) -> None:
        self.segments = [segment for segment in self.segments if segment.create.asked < moment]
        for segment in self.segments:
            segment.without_later(moment)
        self.tables = [table for table in self.tables if table.create.asked < moment]
        for table in self.tables:
            table.without_later(moment)


def _asked(request: _R | None, moment: int) -> _R | None:
    return request if request is not None and request.asked < moment else None


def block_bytes(tag: int, append: Append) -> bytes:
    """What the client sends; every byte follows from the writer and the number."""
    header = _BLOCK_HEADER.pack(BLOCK_MAGIC, tag, append.number, append.event_count, append.payload_bytes)
    return header + hashlib.shake_128(header).digest(append.payload_bytes)


class ContentError(AssertionError):
    """A segment holds bytes that nobody wrote there."""


def parse_blocks(data: bytes, start: int) -> Iterable[tuple[int, int, int, int]]:
    """The blocks in a segment's bytes from offset `start` on, as tag, number, offset and end.

    Raises:
        ContentError: bytes that are no whole block as its writer made it.
    """
    position = 0
    while position < len(data):
        first = position
        if data[position : position + 4] == bytes(4):
            _, length = _EVENT_HEADER.unpack_from(data, position)
            position += _EVENT_HEADER.size
        else:
            length = -1
        header = data[position : position + BLOCK_HEADER_BYTES]
        if len(header) < BLOCK_HEADER_BYTES or header[:4] != BLOCK_MAGIC:
            raise ContentError(f"no block at offset {start + position}: {header[:32]!r}")
        _, tag, number, _, payload_bytes = _BLOCK_HEADER.unpack(header)
        end = position + BLOCK_HEADER_BYTES + payload_bytes
        whole = header + hashlib.shake_128(header).digest(payload_bytes)
        if data[position:end] != whole or length not in (-1, len(whole)):
            raise ContentError(f"block {number} of writer {tag} at offset {start + position} is not as it was written")
        yield tag, number, start + first, start + end
        position = end

"""Commit sets: transactions of one or several streams that are committed together, once for each epoch of a writer.

A writer numbers its sets with epochs that grow. Its record, at its home stream, has the last epoch that was committed,
so a repetition is recognised as long as that stream exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.model.names import check_stream_name, refuse_dot_segment
from headrace.model.transactions import CommitOrder, reference_epoch_of

SET_TRANSACTIONS_MAX = 2_500
SET_STREAMS_MAX = 40
"""Of a set. Its decision writes two records for each stream, and one for the writer, in one transaction."""

WRITER_CHARACTERS_MAX = 250
EPOCH_MAX = (1 << 63) - 1
WRITER_ALPHABET = "the letters A-Z and a-z, the digits, '.', ':', '_' and '-'"
_WRITER = re.compile(r"[A-Za-z0-9._:\-]{1,250}")

MEMBERS_PER_WRITE = 100
"""The number of members that are read, prepared or released at once: the most that one transaction writes."""

Members = Mapping[str, Sequence[int]]
"""The ids of the transactions of a set, by stream."""


@dataclass(frozen=True, slots=True)
class PendingSet:
    """A set that its writer has begun to commit, with parts in `streams`. A `refused` one releases its members."""

    set_id: str
    epoch: int
    streams: tuple[str, ...]
    refused: bool = False


@dataclass(frozen=True, slots=True)
class CommitWriter:
    """The sets of a writer: the last one that was committed (all None before the first), and one that is not decided.

    A writer has at most one pending set. Its `epoch` is higher than the committed one.
    """

    name: str
    epoch: int | None = None
    set_id: str | None = None
    time_ms: int | None = None
    pending: PendingSet | None = None


@dataclass(frozen=True, slots=True)
class CommitPart:
    """The members of a set in one stream, in the order of their commit.

    It has an `order` from the decision on, and no part of a set has one before. `lost` says that members lost bytes
    before the first was committed, so that none is.
    """

    set_id: str
    home: str
    writer: str
    members: tuple[int, ...]
    order: CommitOrder | None = None
    lost: bool = False


def is_committed(writer: CommitWriter | None, epoch: int) -> bool:
    """Whether this epoch of the writer or a later one was committed."""
    return writer is not None and writer.epoch is not None and epoch <= writer.epoch


def begun(writer: CommitWriter, pending: PendingSet) -> CommitWriter:
    """The writer after it began to commit a set.

    Raises:
        CorruptError: another set is pending, or the epoch was committed; nothing may replace them.
    """
    if writer.pending is not None or is_committed(writer, pending.epoch):
        raise CorruptError(f"refusing to begin epoch {pending.epoch} of writer {writer.name}: it is {writer}")
    return replace(writer, pending=pending)


def refused(writer: CommitWriter) -> CommitWriter:
    """The writer after its pending set was refused. Its members are released next."""
    return replace(writer, pending=replace(_pending(writer), refused=True))


def forgotten(writer: CommitWriter) -> CommitWriter:
    """The writer without its refused set."""
    if not _pending(writer).refused:
        raise CorruptError(f"refusing to forget a set of writer {writer.name} that may be committed")
    return replace(writer, pending=None)


def decided(writer: CommitWriter, now_ms: int) -> CommitWriter:
    """The writer after its pending set was committed."""
    pending = _pending(writer)
    if pending.refused:
        raise CorruptError(f"refusing to commit a refused set of writer {writer.name}")
    return CommitWriter(writer.name, pending.epoch, pending.set_id, now_ms)


def ordered(part: CommitPart, number: int) -> CommitPart:
    """A part after the decision, with its place in the order of its stream."""
    return replace(part, order=CommitOrder(number, group=part.members[0]))


def member_chunks(members: Members) -> Iterator[tuple[str, Sequence[int]]]:
    """The members in chunks of one stream each, of MEMBERS_PER_WRITE."""
    for stream, ids in members.items():
        for start in range(0, len(ids), MEMBERS_PER_WRITE):
            yield stream, ids[start : start + MEMBERS_PER_WRITE]


def _pending(writer: CommitWriter) -> PendingSet:
    if writer.pending is None:
        raise CorruptError(f"writer {writer.name} has no pending commit set")
    return writer.pending


def check_set_writer(writer: str) -> str:
    """Raises InvalidRequestError, code "invalid_commit_set"."""
    if not _WRITER.fullmatch(writer):
        raise InvalidRequestError(
            f"{writer[:100]!a} cannot be the writer of a commit set: use 1 to {WRITER_CHARACTERS_MAX} of "
            f"{WRITER_ALPHABET}",
            code="invalid_commit_set",
        )
    return refuse_dot_segment("writer", writer, "invalid_commit_set")


def check_set_epoch(epoch: int) -> int:
    """Raises InvalidRequestError, code "invalid_commit_set"."""
    if not 0 <= epoch <= EPOCH_MAX:
        raise InvalidRequestError(
            f"{epoch} cannot be the epoch of a commit set: use 0 to {EPOCH_MAX}", code="invalid_commit_set"
        )
    return epoch


def in_commit_order(ids: Iterable[int]) -> tuple[int, ...]:
    """Members of a set in one stream, in the order in which they are committed: those of older epochs first."""
    return tuple(sorted(ids, key=reference_epoch_of))


def check_set_members(members: Members) -> dict[str, tuple[int, ...]]:
    """The members by stream, in the order given, but those of older epochs first. A stream without one is left out.

    A run commits transactions of one epoch, so a set that mixes them would need a run for each member.

    Raises InvalidRequestError: code "invalid_commit_set", unless these are 1 to 2,500 different transactions of at most
    40 streams; or "invalid_name".
    """
    found = {check_stream_name(stream): in_commit_order(ids) for stream, ids in sorted(members.items()) if ids}
    count = sum(map(len, found.values()))
    if (
        not 1 <= count <= SET_TRANSACTIONS_MAX
        or len(found) > SET_STREAMS_MAX
        or any(len(set(ids)) != len(ids) for ids in found.values())
    ):
        raise InvalidRequestError(
            f"a commit set has 1 to {SET_TRANSACTIONS_MAX} different transactions of at most {SET_STREAMS_MAX} streams",
            details={
                "transactions": count,
                "transactions_max": SET_TRANSACTIONS_MAX,
                "streams": len(found),
                "streams_max": SET_STREAMS_MAX,
            },
            code="invalid_commit_set",
        )
    return found

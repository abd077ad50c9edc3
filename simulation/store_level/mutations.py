"""Deliberate bugs of whole stores, to prove that this level finds bugs.

Those with a number are of the same table as the deliberate bugs of the protocol (`simulation.mutations`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headrace.codec.log_record_header import RecordHeader
from headrace.model.containers import SnapshotPointer
from headrace.model.errors import AlreadyExistsError
from headrace.ports.journal_disk import JournalFile
from headrace.segmentstore.containers.operation_log import OperationLog, _Frame
from headrace.segmentstore.containers.recovery import Checkpoints
from headrace.segmentstore.log.journal import journal_files, journal_scan
from headrace.segmentstore.log.journal.journal_scan import ReadBytes
from headrace.segmentstore.log.objects.log_object_writer import LogObjectWriter
from headrace.segmentstore.log.replicated.replica_sessions import ReplicaSessions, _Replica
from headrace.segmentstore.owned_container import ContainerOpening, OwnedContainer
from headrace.segmentstore.store import SegmentStore
from headrace.segmentstore.tiering.storage_writer import StorageWriter
from segmentstore_fargate import openings
from simulation.mutations import Mutation, applied
from simulation.store_level.runs import run_store_seed
from simulation.world.volume import VolumeFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

SEEDS_MAX: Final = 200


def _without_sync(self: VolumeFile) -> None:
    self._disk.take_step()


async def _never_drained(_self: StorageWriter) -> bool:
    return True


def _truncates_too_much(self: OperationLog, before_entry: int) -> None:
    self.flush()
    self.ledger.truncate(min(before_entry + 2, self.ledger.next_entry))


def _release_when_durable(self: _Frame, error: Exception | None) -> None:
    _DURABLE(self, error)
    if error is None:
        self.released()


async def _left_to_its_hand_over(
    _self: SegmentStore, _owned: OwnedContainer, handing_over: asyncio.Future[bool]
) -> bool:
    return await handing_over


async def _never_ahead(_self: ContainerOpening, _pointer: SnapshotPointer | None) -> None:
    """Tier 2 counts as not ahead of the log."""


def _fails_at_a_bad_sector(file: JournalFile, position: int, length: int) -> ReadBytes:
    return ReadBytes(file.read(position, length))


async def _without_put(_self: LogObjectWriter, _name: str, _parts: Sequence[Buffer]) -> None:
    """Success at once."""


async def _taken_is_success(self: LogObjectWriter, name: str, parts: Sequence[Buffer]) -> None:
    with suppress(AlreadyExistsError):
        await self._storage.put(name, parts)


class _NeverRaisedError(Exception):
    """No claim ends with it."""


class _Unheard:
    """The replica whose journal has an entry on disk too late to tell."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def record_durable(self, _error: Exception | None) -> None:
        """The owner was told before."""


def _acknowledges_unsynced(
    self: ReplicaSessions, replica: _Replica, header: RecordHeader, parts: Sequence[Buffer], size: int
) -> None:
    if not size:
        _SUBMIT(self, replica, header, parts, size)
        return
    _SUBMIT(self, _Unheard(), header, parts, 0)  # type: ignore[arg-type]
    replica.durable_records += 1
    self.durable(replica, 0)


def _keeps_one_less(checkpoint: int, oldest_needed: int | None) -> bool:
    return oldest_needed is None or checkpoint <= oldest_needed + 1


_DURABLE = _Frame.__call__
_SUBMIT = ReplicaSessions.submit

MUTATIONS: Final = (
    Mutation(
        "17",
        "a block of the cache is used again when its entry is acknowledged",
        ("I1",),
        ((_Frame, "__call__", _release_when_durable),),
    ),
    Mutation("S1", "acknowledges before the sync", (), ((VolumeFile, "sync", _without_sync),)),
    Mutation("S2", "hands over what tier 2 does not have", (), ((StorageWriter, "drain", _never_drained),)),
    Mutation("S3", "truncates what tier 2 does not have", (), ((OperationLog, "truncate", _truncates_too_much),)),
    Mutation(
        "S4",
        "a stop does not flush a container whose hand-over is undone",
        (),
        ((SegmentStore, "_drain_if_undone", _left_to_its_hand_over),),
    ),
    Mutation(
        "S5",
        "a stop takes a claim without an answer for none",
        (),
        ((openings, "UnansweredClaimError", _NeverRaisedError),),
    ),
    Mutation("S6", "acknowledges an entry without its PUT", (), ((LogObjectWriter, "_create", _without_put),)),
    Mutation("S7", "takes a taken name for success", (), ((LogObjectWriter, "_create", _taken_is_success),)),
    Mutation(
        "S8",
        "a member acknowledges an entry before its sync",
        (),
        ((ReplicaSessions, "submit", _acknowledges_unsynced),),
    ),
    Mutation(
        "19",
        "a checkpoint truncates the log one entry too far",
        (),
        ((Checkpoints, "_keeps", staticmethod(_keeps_one_less)),),
    ),
    Mutation(
        "S9",
        "after an accepted loss tier 2 counts as not ahead of the log",
        (),
        ((ContainerOpening, "_look_for_loss", _never_ahead),),
    ),
    Mutation(
        "S10",
        "a sector that cannot be read ends the scan of a journal",
        (),
        (
            (journal_scan, "read_around", _fails_at_a_bad_sector),
            (journal_files, "read_around", _fails_at_a_bad_sector),
        ),
    ),
)


def is_caught(mutation: Mutation, violations: tuple[str, ...]) -> bool:
    """Whether a checker that is named for the bug has seen it, or any checker if none is named."""
    named = tuple(f"{checker}:" for checker in mutation.checkers) or ("",)
    return any(violation.startswith(named) for violation in violations)


def seeds_until_caught(mutation: Mutation, seeds: int) -> tuple[int, str] | None:
    """How many seeds it took until the bug was caught, and what was violated; None if it was not."""
    with applied(mutation):
        for seed in range(seeds):
            violations = run_store_seed(seed).violations
            if is_caught(mutation, violations):
                return seed + 1, violations[0]
    return None

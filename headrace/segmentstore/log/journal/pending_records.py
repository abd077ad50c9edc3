"""Records that are queued for the journal and are not on its disk yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.codec.log_record_header import Codec, RecordKind
from headrace.model.container_logs import LedgerChain
from headrace.ports.ledger import Done, Released

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(slots=True)
class PendingRecord:
    """A record to write, with the fields of its header (`journal_format.RecordHeader`).

    Without a `kind` nothing is written, and `done` is called when everything queued before is durable. If there is a
    `chain` then, the journal forgets the entries of the container that no ledger of the chain has. `released` is
    called when the journal reads `parts` no more, before `done`. A record without a `payload_checksum` gets it when it
    is written.
    """

    kind: RecordKind | None
    container: int
    epoch: int
    writer_epoch: int
    entry: int
    truncated_before: int
    acknowledged_before: int
    parts: Sequence[Buffer]
    length: int
    done: Done
    released: Released | None = None
    payload_checksum: int | None = None
    copied: bool = False
    codec: Codec = Codec.PLAIN
    chain: LedgerChain | None = None


def promise_record(container: int, writer_epoch: int, done: Done, truncated_before: int = 0) -> PendingRecord:
    """A promise to accept nothing of an owner with a lower epoch."""
    return PendingRecord(RecordKind.PROMISE, container, 0, writer_epoch, 0, truncated_before, 0, (), 0, done)


def truncation_record(container: int, epoch: int, before_entry: int, done: Done) -> PendingRecord:
    """A record after which the entries before `before_entry` are not needed."""
    return PendingRecord(RecordKind.TRUNCATION, container, epoch, epoch, 0, before_entry, 0, (), 0, done)


def drop_record(container: int, epoch: int, done: Done) -> PendingRecord:
    """A record after which nothing of the container is needed except its promise."""
    return PendingRecord(RecordKind.DROP, container, epoch, epoch, 0, 0, 0, (), 0, done)


def barrier(done: Done) -> PendingRecord:
    """Writes nothing; `done` is called when everything queued before is durable."""
    return PendingRecord(None, 0, 0, 0, 0, 0, 0, (), 0, done)


def keep_ledgers(container: int, chain: LedgerChain, done: Done) -> PendingRecord:
    """Writes nothing. When everything queued before is durable, the entries outside of the chain are not needed."""
    return PendingRecord(None, container, 0, 0, 0, 0, 0, (), 0, done, chain=chain)


def ignore(_error: Exception | None) -> None:
    """Ignore the result, because no caller waits for it."""


Deliver = Callable[[Callable[[], None]], object]
"""Runs a callable on the event loop, from any thread."""

"""What the state machines ask their shells to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from headrace.codec.log_record_header import RecordHeader
from headrace.codec.replica_messages import Entry, Nack, Open, Opened, Read
from headrace.model.container_logs import ContainerLog, ReplicaId

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Source(Enum):
    """Where the shell has the entries that it sends: MEMORY until they are released, JOURNAL as soon as they are."""

    MEMORY = "memory"
    JOURNAL = "journal"


# Effects of the owner's machines, LedgerWriter and LogRecovery.


@dataclass(frozen=True, slots=True)
class OpenMember:
    """Send OPEN to a replica, and dial it first if there is no link."""

    member: ReplicaId
    message: Open


@dataclass(frozen=True, slots=True)
class Send:
    """Send entries `first` to `last` to a member; from the journal at most `bytes_max`, but at least one entry.

    The shell sends them under this owner's epoch as the writer. It reports what it sent from the journal with `sent`.
    """

    member: ReplicaId
    first: int
    last: int
    source: Source
    bytes_max: int


@dataclass(frozen=True, slots=True)
class SendCopies:
    """Send entries that were read from another replica. They are in no memory and in no journal here."""

    member: ReplicaId
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Ask a replica for entries."""

    member: ReplicaId
    message: Read


@dataclass(frozen=True, slots=True)
class SendPulse:
    """Tell a member the last acknowledged entry and the truncation point."""

    member: ReplicaId
    acknowledged_entry: int
    truncated_before: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """All entries up to this one are acknowledged: tell their callers, in order."""

    up_to: int


@dataclass(frozen=True, slots=True)
class Release:
    """The local journal has all entries up to this one: their memory may be used again."""

    up_to: int


@dataclass(frozen=True, slots=True)
class WriteClaim:
    """Replace the container's claim under the version that was looked at."""

    version: int


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write the log record if it has this version (0: it does not exist) and the claim still has this epoch."""

    log: ContainerLog
    version: int
    claim_epoch: int


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the log record, strongly consistent."""


@dataclass(frozen=True, slots=True)
class DropMember:
    """Tell a replica that it is not a member any longer."""

    member: ReplicaId
    session: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """Raise an alarm: a replica denies what it had acknowledged."""

    member: ReplicaId
    reason: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """Raise an alarm: the recovery waits for replicas. An operator may have to accept the loss of them."""

    reason: str


@dataclass(frozen=True, slots=True)
class Serve:
    """The log is recovered: replay `truncated_before` to `last` from the local journal, then append to `log`."""

    log: ContainerLog
    version: int
    truncated_before: int
    last: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The machine has ended: another owner has the container. It has no further effects."""

    reason: str


WriterEffect = (
    OpenMember
    | Send
    | SendCopies
    | ReadEntries
    | SendPulse
    | Acknowledge
    | Release
    | WriteClaim
    | WriteRecord
    | ReadRecord
    | DropMember
    | Suspect
    | Blocked
    | Serve
    | Fail
)


# Effects of a replica.


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """Write a record to the journal, in this order. The shell reports it with `committed` when it is durable.

    `parts` are together the `header.length` bytes of its payload.
    """

    header: RecordHeader
    parts: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class Answer:
    """Send a message over the link that the request came from."""

    link: int
    message: Opened | Nack


@dataclass(frozen=True, slots=True)
class Held:
    """Tell the owner the last durable entry. The shell puts what one commit made durable into one ACK per link."""

    link: int
    session: int
    epoch: int
    last: int


@dataclass(frozen=True, slots=True)
class AnswerFromJournal:
    """Read entries from the journal and send them as ENTRIES."""

    link: int
    message: Read


ReplicaEffect = QueueRecord | Answer | Held | AnswerFromJournal

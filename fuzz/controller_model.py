"""What the controller was asked for, what it answered, and which commit sets it decided: a model of transactions.

The model learns of each decision right after the write that makes it. It knows from the answers in which order commits
must be in a stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.control_plane import ControlPlane
from headrace.metadata.commit_records import find_commit_part, find_commit_writer
from headrace.metadata.record_layout import transactions_partition
from headrace.metadata.transaction import OPEN_FIRST, OPEN_LAST, decode_transaction, done_key, open_key
from headrace.model.commit_sets import CommitWriter
from headrace.model.transactions import TransactionState

EVENT_BYTES: Final = 5

Event = tuple[int, int]
"""The index of its key, and its number."""


def event_bytes(key: int, event: int) -> bytes:
    """An event: the index of its key, and its number."""
    return bytes([key]) + event.to_bytes(EVENT_BYTES - 1, "big")


def parse_events(data: bytes) -> list[Event]:
    """The events in bytes of a segment. Raises WrongStateError."""
    if len(data) % EVENT_BYTES:
        raise WrongStateError(f"{len(data)} bytes end in the middle of an event")
    starts = range(0, len(data), EVENT_BYTES)
    return [(data[start], int.from_bytes(data[start + 1 : start + EVENT_BYTES], "big")) for start in starts]


SCOPE: Final = "s"
STREAMS: Final = ("a", "b", "c")
WRITERS: Final = ("w0", "w1")
KEYS: Final = (0.1, 0.4, 0.8)
"""The positions of the routing keys."""

LONG_MS: Final = 24 * 3600 * 1000
"""The longest lease: no transaction with it expires before the processes have ended."""

TRANSACTION: Final = "#transaction."
"""What is before the id in the name of a segment of a transaction."""

Place = tuple[str, int]
"""The stream and the id of a transaction."""


def place_of_segment(name: str) -> Place:
    """The transaction that a segment belongs to."""
    return name.split("/")[1], int(name.partition(TRANSACTION)[2], 16)


@dataclass(slots=True)
class ModelTransaction:
    """A transaction that a client has begun. `events` are numbers with the index of their key.

    `first_commit` is the moment of the first call that commits it, and `committed` the moment of an answer that says
    so. Moments are counted, and are no times of the clock.
    """

    place: Place
    incarnation: int
    may_expire: bool
    events: list[Event] = field(default_factory=list)
    is_begun: bool = False
    """Whether the client that began it had an answer. Else another client has found it in the list."""
    is_committed_alone: bool = False
    """Whether a client has called commit for it, and not for a set with it."""
    first_commit: int | None = None
    committed: int | None = None

    @property
    def has_segments(self) -> bool:
        """Whether its segments were created, unless that is done on demand. Its creator may have died before."""
        return self.is_begun or bool(self.events)


@dataclass(slots=True)
class SetCall:
    """A call that commits a set. `is_new` is its answer, or None without an answer."""

    writer: str
    home: str
    epoch: int
    members: Mapping[str, Sequence[int]]
    is_new: bool | None = None

    def places(self) -> list[Place]:
        return [(stream, each) for stream, ids in self.members.items() for each in ids]


@dataclass(frozen=True, slots=True)
class Decision:
    """A commit set that was decided. `number` is its place among all decisions, and -1 the incarnation without home."""

    writer: str
    home: str
    epoch: int
    incarnation: int
    number: int
    set_id: str


@dataclass(slots=True)
class Reading:
    """The events of each key that a reader has read from the head on, in an incarnation of a stream."""

    stream: str
    incarnation: int
    events: list[list[int]]


class ControllerModel:
    """Transactions and commit sets of all streams. Sets are at home in the streams `homes`."""

    def __init__(self, plane: ControlPlane, homes: Sequence[str]) -> None:
        self.homes = homes
        self.transactions: dict[Place, ModelTransaction] = {}
        self.calls: list[SetCall] = []
        self.readings: list[Reading] = []
        self.decided: dict[Place, Decision] = {}
        self.decisions: list[Decision] = []
        self.truncated: set[str] = set()
        """Streams whose first events may be gone."""
        self.retained: set[str] = set()
        """Streams that were created with a retention policy."""
        self.lost: set[Place] = set()
        """Transactions that lost a segment with a volume."""
        self.lost_late: set[Place] = set()
        """Those of them that were decided or marked for commit before. A commit may have begun, and not know it."""
        self.noted: set[tuple[str, str]] = set()
        """Streams and sets of which the controller has noted a loss. Nothing of them may be committed."""
        self._plane = plane
        self._moment = 0
        self._events = 0
        self._last_set: dict[tuple[str, str], str] = {}
        self._waiting_parts: set[tuple[str, str]] = set()
        self._begun_in: dict[Place, int] = {}
        """The incarnations of all transactions. An answer may come when the stream was deleted and created again."""

    def next_moment(self) -> int:
        self._moment += 1
        return self._moment

    def next_event(self) -> int:
        self._events += 1
        return self._events

    def add(self, place: Place, *, may_expire: bool) -> ModelTransaction:
        """A transaction that has just begun, or was found in the list."""
        known = self.transactions.get(place)
        if known is None:
            known = self.transactions[place] = ModelTransaction(place, self._begun_in[place], may_expire)
        return known

    def call(self, writer: str, home: str, epoch: int, members: Mapping[str, Sequence[int]]) -> SetCall:
        """A call that commits a set, and that begins now."""
        made = SetCall(writer, home, epoch, {stream: tuple(ids) for stream, ids in members.items()})
        self.calls.append(made)
        for place in made.places():
            transaction = self.transactions[place]
            transaction.first_commit = transaction.first_commit or self.next_moment()
        return made

    def answered(self, call: SetCall, *, is_new: bool) -> None:
        """The answer to a call that commits a set. All its decided members are committed now."""
        call.is_new = is_new
        now = self.next_moment()
        for place in call.places():
            if place in self.decided:
                self.transactions[place].committed = now

    def incarnation(self, stream: str) -> int:
        """The number by which incarnations of a stream differ; -1 if the stream does not exist."""
        found = self._plane.records.find(SCOPE, stream)
        return -1 if found is None else found.stream.first_segment_number

    def is_present(self, transaction: ModelTransaction) -> bool:
        """Whether the incarnation of the stream exists that the transaction was begun in."""
        return self.incarnation(transaction.place[0]) == transaction.incarnation

    def state(self, place: Place) -> TransactionState | None:
        """The state in the records, or None for a transaction that is unknown or forgotten."""
        for key in (open_key(SCOPE, *place), done_key(SCOPE, *place)):
            record = self._plane.bare_store.get(key)
            if record is not None:
                return decode_transaction(record.body).state
        return None

    def writers(self) -> Iterator[tuple[str, str]]:
        """The writers of commit sets: home stream and name."""
        for home in self.homes:
            for writer in WRITERS:
                yield home, writer

    def pending_sets(self) -> set[str]:
        """The sets that are begun and not decided."""
        found = (find_commit_writer(self._plane.bare_store, SCOPE, *writer) for writer in self.writers())
        return {each.writer.pending.set_id for each in found if each is not None and each.writer.pending is not None}

    def follow(self) -> None:
        """Learn of the transaction that the last call has begun, or the set that it has decided.

        Raises WrongStateError.
        """
        self._note_begun()
        for home, writer in self.writers():
            stored = find_commit_writer(self._plane.bare_store, SCOPE, home, writer)
            if stored is None or (set_id := stored.writer.set_id) is None:
                continue
            if self._last_set.get((home, writer)) != set_id:
                self._last_set[home, writer] = set_id
                self._decide(home, stored.writer, set_id)
        for stream, set_id in sorted(self._waiting_parts):
            part = find_commit_part(self._plane.bare_store, SCOPE, stream, set_id)
            if part is None:
                self._waiting_parts.remove((stream, set_id))
            elif part.part.lost:
                self.noted.add((stream, set_id))

    def _note_begun(self) -> None:
        for stream in STREAMS:
            opened = self._plane.bare_store.query(
                transactions_partition(SCOPE, stream), first=OPEN_FIRST, last=OPEN_LAST, limit=1_000
            )
            for record in opened.records:
                place = stream, int(record.key.sort.removeprefix(OPEN_FIRST), 16)
                if place not in self._begun_in:
                    incarnation = decode_transaction(record.body).first_segment_number
                    assert incarnation is not None, "all but old versions note it"
                    self._begun_in[place] = incarnation

    def _decide(self, home: str, writer: CommitWriter, set_id: str) -> None:
        assert writer.epoch is not None
        decision = Decision(writer.name, home, writer.epoch, self.incarnation(home), len(self.decisions), set_id)
        for former in self.decisions:
            is_same = (former.writer, former.home, former.incarnation) == (writer.name, home, decision.incarnation)
            if is_same and former.epoch >= decision.epoch:
                raise WrongStateError(f"{decision} follows {former}")
        self.decisions.append(decision)
        for stream in STREAMS:
            stored = find_commit_part(self._plane.bare_store, SCOPE, stream, set_id)
            if stored is None:
                continue
            if stored.part.order is None:
                raise WrongStateError(f"{decision}: its part in {stream} has no place in the order")
            self._waiting_parts.add((stream, set_id))
            for identifier in stored.part.members:
                if (stream, identifier) in self.decided:
                    raise WrongStateError(
                        f"{stream} {identifier:x} is in {self.decided[stream, identifier]}, {decision}"
                    )
                self.decided[stream, identifier] = decision

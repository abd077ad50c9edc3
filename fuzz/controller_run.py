"""What the processes of one seed share: the control plane, the model, the messages, and what has happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from fuzz.control_plane import ControlPlane
from fuzz.controller_model import SCOPE, STREAMS, ControllerModel
from fuzz.controller_retention import WatchedRetention
from fuzz.controller_segments import MERGE, LateSegments, WatchedMerges
from fuzz.process_turns import TURN
from fuzz.program_trace import Trace
from fuzz.randomness import Random
from fuzz.watched_ports import ShuffledWorkers
from headrace.controller.services.transaction_service import TransactionService
from headrace.model.errors import ConflictError, CorruptError, HeadraceError, UnavailableError
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy

_SERVICES: Final = 3
_HOMES: Final = 2
_READERS_SHARE: Final = 0.4
_REPORTS_SHARE: Final = 0.3
_SEAL_STORMS_SHARE: Final = 0.3
_BY_TIME_SHARE: Final = 0.3
_LEAST_MS: Final = 60_000
_MOST_MS: Final = 150_000
_BY_RATE_SHARE: Final = 0.7
_TARGET_RATE: Final = 100
_REPEATED_SHARES: Final = (0.0, 0.1, 0.4)
ATTEMPTS: Final = 4
_CHANGES_RECORDS: Final = ("write", "transaction")
_SLOW_CALLS: Final = (None, None, "segment store delete_segments")
SLOW_CALL_MS: Final = 1_000
RETAINED_BYTES: Final = 5

T = TypeVar("T")
Message = tuple[str, dict[str, Any]]
"""The kind of a queue, and the body of a message of it."""


class ControllerRun:
    """The state of one seed. `waiting` are messages without a processor, `processed` those that a processor had.

    Some seeds have more than others. A generator of its own decides this, so that the other seeds do as they did before
    the programs had it.
    """

    def __init__(self, seed: int, random: Random, trace: Trace) -> None:
        self.random = random
        self.trace = trace
        self.has_seal_storms = Random(f"{seed}: storms of seals").random() < _SEAL_STORMS_SHARE
        self.plane = ControlPlane(seed, ShuffledWorkers(seed), torn_queries=self.has_seal_storms)
        self.model = ControllerModel(self.plane, random.sample(STREAMS, _HOMES))
        self.merges = WatchedMerges(self.plane)
        self.late = LateSegments(self.plane)
        self.retention_policy = RetentionPolicy.by_size(RETAINED_BYTES)
        choice = Random(f"{seed}: late retention")
        self.retains_by_time = choice.random() < _BY_TIME_SHARE
        if self.retains_by_time:
            self.retention_policy = RetentionPolicy.by_time(_LEAST_MS, choice.choice((None, _MOST_MS, _MOST_MS)))
        self.retention = WatchedRetention(
            self.plane, self.merges, self.retention_policy if self.retains_by_time else None
        )
        self.happened: Counter[str] = Counter()
        self.waiting: list[Message] = []
        self.processed: list[Message] = []
        self.has_reports = Random(f"{seed}: rates policies").random() < _REPORTS_SHARE
        self.repeated_share = random.choice(_REPEATED_SHARES)
        self.slow_calls = random.choice(_SLOW_CALLS)
        self.has_large_sets = random.random() < 0.4
        self._services = [self.plane.another_transaction_service() for _ in range(_SERVICES)]
        self.has_readers = random.random() < _READERS_SHARE
        retained_share = 0.5 if self.has_readers or self.retains_by_time else 0.1
        for stream in STREAMS:
            retention = self.retention_policy if random.random() < retained_share else None
            if retention is not None:
                self.model.truncated.add(stream)
                self.model.retained.add(stream)
            self.plane.create(stream, scaling=self.scaling_policy((1, 1, 2)), retention=retention)

    def scaling_policy(self, segments: Sequence[int]) -> ScalingPolicy:
        """A policy with one of these minimal numbers of segments, in some seeds mostly one by rate."""
        least = segments[0] if len(segments) == 1 else self.random.choice(segments)
        if self.has_reports and self.random.random() < _BY_RATE_SHARE:
            return ScalingPolicy.by_event_rate(_TARGET_RATE, self.random.randint(2, 3), least)
        return ScalingPolicy.fixed(least)

    def follow(self, kind: str) -> None:
        """Learn of what the last call, of this kind, has changed in the records. Raises WrongStateError."""
        if kind in _CHANGES_RECORDS:
            self.model.follow()
            self.retention.follow()
        if kind == MERGE:
            self.merges.follow()
        if kind.startswith("segment store"):
            self.late.follow()
        if self.slow_calls is not None and kind.startswith(self.slow_calls):
            self.plane.clock.advance(SLOW_CALL_MS)

    def service(self) -> TransactionService:
        """One of several processes that answer clients, each with what it remembers."""
        return self.random.choice(self._services)

    def give_turn(self) -> None:
        """Let other processes run."""
        self.plane.calls(TURN, lambda: None)

    def note(self, text: str) -> None:
        self.happened[text] += 1
        self.trace.note(text)

    @contextmanager
    def refusals_noted(self, what: str) -> Iterator[None]:
        """Count an error that a client or a tick may meet. CorruptError and errors of other kinds are raised."""
        try:
            yield
        except CorruptError:
            raise
        except HeadraceError as error:
            self.happened[f"{what}: {type(error).__name__}"] += 1
            self.trace.note(f"{what}: {error!r}")

    def retry(self, call: Callable[[], T], attempts: int = ATTEMPTS) -> T:
        """Repeat a call as a client does."""
        for _ in range(attempts - 1):
            try:
                return call()
            except (UnavailableError, ConflictError):
                self.give_turn()
        return call()

    def collect(self) -> None:
        """Take the messages out of the queues."""
        plane = self.plane
        for kind, queue in (
            ("request", plane.bare_queue),
            ("commit", plane.bare_commits),
            ("abort", plane.bare_aborts),
        ):
            while messages := queue.receive():
                for message in messages:
                    self.waiting.append((kind, message.body))
                    queue.acknowledge(message.receipt)

    def exists(self, stream: str) -> bool:
        return self.plane.records.find(SCOPE, stream) is not None

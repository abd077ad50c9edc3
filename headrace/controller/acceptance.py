"""Accepting requests: one transaction writes the change of a resource and the intent, then the message is sent.

If the message cannot be sent, the request is accepted all the same. The sweeper sends the message of a pending intent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.metadata.intent import Intent
from headrace.metadata.optimistic_retry import ConflictBackoff, repeat_on_conflict
from headrace.metadata.placed_cuts import PlacedCuts
from headrace.metadata.request_messages import send_intent
from headrace.metadata.stream_records import StoredStream, StreamRecords, create_intent
from headrace.model.errors import CorruptError, ThrottledError, UnavailableError
from headrace.model.requests import PendingRequest
from headrace.model.stream_cuts import StreamCut
from headrace.model.streams import Stream
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, Write
from headrace.ports.request_queue import RequestQueue, current_requester

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Acceptance:
    """What operations need to accept their requests; safe for any number of threads."""

    def __init__(
        self, store: MetadataStore, queue: RequestQueue, clock: Clock, backoff: ConflictBackoff | None = None
    ) -> None:
        self.store = store
        self.streams = StreamRecords(store)
        self.cuts = PlacedCuts(self.streams.history)
        self.clock = clock
        self._queue = queue
        self._backoff = backoff

    def repeat(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until no other process changes a record between its reads and its write."""
        return repeat_on_conflict(attempt, backoff=self._backoff)

    def create_stream(self, stream: Stream, *writes: Write) -> None:
        """Write a new stream with its intent, and send the message."""
        write, intent = create_intent(stream, self.clock.now_ms())
        self.store.write(*writes, write)
        self.send(intent)

    def change_stream(self, stored: StoredStream, after: Stream, *writes: Write) -> None:
        """Write the stream with its accepted request and the intent, and send the message.

        Raises:
            WriteConflictError: the stream has changed since it was read.
        """
        write, intent = create_intent(after, self.clock.now_ms())
        self.streams.replace(stored, after, *writes, write)
        self.send(intent)

    def intent(self, scope: str, name: str, request: PendingRequest | None) -> Intent:
        """The intent of a request that begins now; raises CorruptError without a request."""
        if request is None:
            raise CorruptError(f"{scope}/{name} has no pending request to write an intent for")
        return Intent(scope, name, request, self.clock.now_ms(), requester=current_requester())

    def send(self, intent: Intent) -> None:
        """Send the message of an intent that is written; a failure is left to the sweeper."""
        try:
            send_intent(self._queue, intent)
        except (UnavailableError, ThrottledError) as error:
            _log.warning("message of %s for %s not sent: %s", intent.request.kind, intent.scoped_name, error)


# What the stream cuts of a reader group must be, besides cuts of their streams.

CheckWritten = Callable[[Stream, StreamCut], None]
"""Raises InvalidRequestError, code "invalid_stream_cut", for a cut beyond the tail of the stream."""


@dataclass(frozen=True, slots=True)
class CutRules:
    """With `at_checkpoint` a starting cut may leave out what readers have finished."""

    at_checkpoint: bool = False
    check_written: CheckWritten | None = None

    def check_place(self, stream: Stream, cut: StreamCut) -> None:
        """Refuse a cut inside the first event or beyond the tail. Checkpoints are made by readers, between events."""
        if not self.at_checkpoint:
            cut.check_between_events()
        if self.check_written is not None:
            self.check_written(stream, cut)


NO_RULES = CutRules()

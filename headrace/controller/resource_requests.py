"""Runs the steps of requests on reader groups, tables and other nouns that keep one pending request in their record.

As with streams, each step is safe to run twice and by two processors at once: it changes the record only on the
condition that it is still the one that was read, and what it does to segment stores may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from headrace.metadata.optimistic_retry import ATTEMPTS_PER_MESSAGE_MAX, repeat_on_conflict
from headrace.metadata.request_messages import parse_message
from headrace.model.errors import ConflictError
from headrace.model.requests import PendingRequest, RequestKind
from headrace.ports.deadlines import require_time_for_piece


class Stored(Protocol):
    """The record of a subject as it was read."""

    def is_pending(self, request: PendingRequest) -> bool: ...


S = TypeVar("S", bound=Stored)


@dataclass(frozen=True, slots=True)
class SubjectStep(Generic[S]):
    """`run` gets the record as just read, with the request pending on it; the last step of a kind ends the request."""

    name: str
    run: Callable[[S], None]


class SubjectRequestProcessor(Generic[S]):
    """Safe for any number of threads and processes; `find` reads a subject by scope and name, None if there is none."""

    def __init__(
        self, find: Callable[[str, str], S | None], steps: Mapping[RequestKind, Sequence[SubjectStep[S]]]
    ) -> None:
        self._find = find
        self._steps = dict(steps)

    @property
    def steps(self) -> dict[RequestKind, Sequence[SubjectStep[S]]]:
        """What is done for each kind, in order."""
        return dict(self._steps)

    def process(self, message_body: Mapping[str, Any]) -> None:
        """Do what the message asks; returns when that is done, also if it was done before.

        Raises:
            InvalidRequestError: this is no request message.
            UnavailableError, ThrottledError, ConflictError: deliver the message again.
            WorkLeftError: the time is over; what was done is on record, and another call goes on from there.
            CorruptError: stored records do not fit; a human must look.
        """
        # A conflict tells that somebody else works on the same request: read again and go on from there.
        repeat_on_conflict(lambda: self._run(message_body), ATTEMPTS_PER_MESSAGE_MAX, ConflictError)

    def work(self, message_body: Mapping[str, Any]) -> Iterator[str]:
        """Do one step of the work per item asked for; the items are the names of the steps just done."""
        scope, name, request = parse_message(message_body)
        for step in self._steps[request.kind]:
            stored = self._find(scope, name)
            if stored is None or not stored.is_pending(request):
                return
            step.run(stored)
            yield step.name
            require_time_for_piece(f"{request.kind} of {scope}/{name} after {step.name!r}")

    def _run(self, message_body: Mapping[str, Any]) -> None:
        for _ in self.work(message_body):
            continue

"""Dead letters for operators: list, inspect, replay, drop.

Replaying a letter repeats its request. A request that was rolled back is submitted again to its service. A stuck
request is still accepted, so only its message is sent again, without waiting for the sweeper. Replaying twice is
harmless, because services and processors recognise a request that they have seen.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from headrace.api.listings import Listing
from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import Rollback
from headrace.controller.operations.registry import OPERATIONS
from headrace.controller.services.paging import check_page_limit, first_after
from headrace.metadata.dead_letter import (
    DeadLetterRecords,
    StoredLetter,
    delete_letter,
    replace_letter,
    stuck_request_key,
)
from headrace.model.dead_letters import DeadLetter, DeadLetterStatus, check_letter_id, replayed
from headrace.model.errors import ConflictError, CorruptError, IllegalStateError, NotFoundError
from headrace.model.requests import RequestKind
from headrace.ports.metadata_store import READS_PER_BATCH_MAX, Key, MetadataStore, Record, WriteConflictError
from headrace.ports.request_queue import RequestQueue

_ATTEMPTS_MAX = 5
_OVER = (DeadLetterStatus.DONE, DeadLetterStatus.REPLAYED)


class DeadLetterService:
    """Called by the dead-letter routes of the API; safe for any number of threads.

    `queues` are the queues, by name, to which a message can be sent again.
    """

    def __init__(self, store: MetadataStore, queues: Mapping[str, RequestQueue], acceptance: Acceptance) -> None:
        self._store = store
        self._records = DeadLetterRecords(store)
        self._queues = queues
        self._acceptance = acceptance

    def list_letters(self, limit: int, after: str | None = None) -> Listing[DeadLetter]:
        """Dead letters, by the time at which each was first written.

        Costs one query, and one batch read per 100 letters of stuck requests.

        Raises:
            InvalidRequestError: a limit outside 1..PAGE_ITEMS_MAX.
        """
        letters, next_after = self._records.page(first_after(after), check_page_limit(limit))
        return Listing(tuple(self._as_they_are(letters)), next_after)

    def get_letter(self, letter_id: str) -> DeadLetter:
        """A dead letter with its present status; costs one read, or two for a stuck request.

        Raises:
            InvalidRequestError: `letter_id` is not a valid id.
            NotFoundError: there is no such letter.
        """
        return self._as_they_are([self._get(letter_id).letter])[0]

    def replay_letter(self, letter_id: str) -> DeadLetter:
        """Repeat the request of a letter. A letter that is done or was replayed before stays as it is.

        Raises:
            InvalidRequestError, NotFoundError: as `get_letter`; or the resource of the request no longer exists.
            IllegalStateError: code "not_replayable"; or the present state of the stream does not allow the request.
            SealedError: the stream has been sealed.
            ConflictError: another operation runs on the stream; repeat soon.
            UnavailableError, ThrottledError: the queue does not accept the message; repeat.
        """
        stored = self._get(letter_id)
        (letter,) = self._as_they_are([stored.letter])
        if letter.status in _OVER:
            return letter
        if letter.status is DeadLetterStatus.UNDONE:
            self._repeat_request(letter)
        else:
            self._send_again(letter)
        after = replayed(letter)
        try:
            self._store.write(replace_letter(stored, after))
        except WriteConflictError:
            return self.get_letter(letter_id)  # The request failed again, or another operator replayed it too.
        return after

    def drop_letter(self, letter_id: str) -> None:
        """Delete a letter. A stuck request is still retried, and gets a new letter if it fails again.

        Raises:
            InvalidRequestError, NotFoundError: as `get_letter`.
            ConflictError: the letter was changed during each of the attempts; repeat.
        """
        for _ in range(_ATTEMPTS_MAX):
            try:
                return self._store.write(*delete_letter(self._get(letter_id)))
            except WriteConflictError:
                continue
        raise ConflictError(f"dead letter {letter_id} is being changed: repeat")

    def _get(self, letter_id: str) -> StoredLetter:
        stored = self._records.find(check_letter_id(letter_id))
        if stored is None:
            raise NotFoundError(f"there is no dead letter {letter_id}", details={"letter": letter_id})
        return stored

    def _as_they_are(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """The letters, those of stuck requests that have been done since as DONE."""
        places = [place for letter in letters if (place := stuck_request_key(letter)) is not None]
        intents = self._intents(list(dict.fromkeys(places)))
        return [
            replace(letter, status=DeadLetterStatus.DONE) if _is_done(letter, intents) else letter for letter in letters
        ]

    def _intents(self, places: Sequence[Key]) -> dict[Key, Record]:
        batches = [places[first : first + READS_PER_BATCH_MAX] for first in range(0, len(places), READS_PER_BATCH_MAX)]
        records = [record for batch in batches for record in self._store.get_many(batch) if record is not None]
        return {record.key: record for record in records}

    def _send_again(self, letter: DeadLetter) -> None:
        queue, body = self._queues.get(letter.queue), letter.body
        if queue is None or body is None:
            raise _not_replayable(letter, "its message is sent again periodically, so drop the letter")
        text = f"{letter.letter_id}:{letter.replays + 1}"
        queue.send(group=letter.group, body=body, deduplication_id=hashlib.sha256(text.encode()).hexdigest())

    def _repeat_request(self, letter: DeadLetter) -> None:
        rollback, body = _rollback_of(letter.kind), letter.body
        if rollback is None or body is None:
            raise _not_replayable(
                letter, f"this version cannot repeat {letter.kind}: submit it yourself and drop the letter"
            )
        with _decoding(letter):
            submit = rollback.replay(letter.parameters)
        submit(self._acceptance, str(body["scope"]), str(body["stream"]))


def _rollback_of(kind: str) -> Rollback | None:
    """How a request of this kind is rolled back and replayed; None also for kinds of other versions."""
    return OPERATIONS[RequestKind(kind)].rollback if kind in set(RequestKind) else None


@contextlib.contextmanager
def _decoding(letter: DeadLetter) -> Iterator[None]:
    """Turn an error in decoding the parameters of a letter into a CorruptError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"dead letter {letter.letter_id} does not hold the parameters of {letter.kind}") from error


def _is_done(letter: DeadLetter, intents: Mapping[Key, Record]) -> bool:
    """Whether a stuck request is complete: its intent no longer exists, or is that of a later request."""
    place = stuck_request_key(letter)
    if place is None:
        return False
    intent = intents.get(place)
    return intent is None or (letter.request_id != "" and intent.body.get("request") != letter.request_id)


def _not_replayable(letter: DeadLetter, why: str) -> IllegalStateError:
    return IllegalStateError(
        f"dead letter {letter.letter_id} cannot be replayed: {why}",
        details={"letter": letter.letter_id, "queue": letter.queue},
        code="not_replayable",
    )

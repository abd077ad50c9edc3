"""Storms: many processes have to do with the same transactions or one stream at once, after calls without faults."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Final

from fuzz.controller_clients import Clients, Successors
from fuzz.controller_losses import CHECK, Losses
from fuzz.controller_messages import Messages
from fuzz.controller_model import SCOPE, STREAMS, TRANSACTION, WRITERS, Place
from fuzz.controller_run import ControllerRun, Message
from fuzz.controller_segments import MERGE
from fuzz.process_turns import Process
from headrace.model.errors import CorruptError, HeadraceError, NotFoundError

_PROCESSORS_MAX: Final = 6
_EPOCH: Final = 90
"""The first epoch of a set in a storm of commits: later than those of the other writers."""
_SHARED_EPOCH: Final = 50
_SEALED_SHARE: Final = 0.4
_LOSSES_SHARE: Final = 0.3
_UNTOUCHED_SHARE: Final = 0.2
_TURNS_MAX: Final = 40
_TURNS_BEFORE_SHARING: Final = (0, 100, 200, 400)

_SLOW_AT_COMMITS: Final[tuple[tuple[str, ...], ...]] = (
    (f"after {CHECK}",),
    ("after transaction",),
    (f"after {CHECK}",),
    (),
)
"""Processors are slow after a check for losses, or between the writes that note a loss and that begin a run."""
_SLOW_AT_SHARED: Final = ("after segment store create", "before segment store delete")
"""One client is slow before it confirms a segment, and before it deletes one that it has created too late."""
_SLOW_AT_SETS: Final = ("after write",)
"""Set writers are slow after they have prepared a member."""
_SLOW_SHARE: Final = 0.7
_FOLLOWING_EPOCH: Final = 70
_LABEL: Final = "late"
_SLOW_AT_SEALS: Final = ((f"before {CHECK}",), (f"after {MERGE}",), (f"before {CHECK}",), ())
"""A processor is slow before it looks for losses, while another one has merged a part of a set."""
_SLOW_AT_CREATIONS: Final = ("before segment store create",)
_SLOW_AT_QUERIES: Final = ("before between reads",)


class Storms:
    """Each `prepare` method makes calls without faults, and the other one returns the processes of the storm."""

    def __init__(self, run: ControllerRun, clients: Clients, messages: Messages, losses: Losses) -> None:
        self._run = run
        self._random = run.random
        self._plane = run.plane
        self._clients = clients
        self._messages = messages
        self._losses = losses
        self._successors = Successors(run, clients)
        self._shared: list[Process] = []

    # Several processors with the same messages

    def prepare_commits(self) -> None:
        """Commit sets with many members in a stream. Perhaps scale it after each, and seal it at the end."""
        random, stream = self._random, self._random.choice(STREAMS)
        with self._run.refusals_noted("storm"):
            for number in range(random.randint(1, 2)):
                self._commit_large_set(stream, _EPOCH + number)
            if random.random() < _SEALED_SHARE:
                self._plane.streams.seal_stream(SCOPE, stream)
            self._run.note("storm of commits")

    def _commit_large_set(self, stream: str, epoch: int) -> None:
        random = self._random
        members: dict[str, list[int]] = {}
        for choice in random.choices((stream, stream, stream, *STREAMS), k=random.randint(3, 8)):
            members.setdefault(choice, []).append(self._clients.begin(choice, f"{WRITERS[0]}/{epoch}/0").place[1])
        self._clients.commit_set(WRITERS[0], random.choice(self._run.model.homes), epoch, members, attempts=1)
        if random.random() < _LOSSES_SHARE:
            lost = random.choice(members.get(stream, [0]))
            self._losses.lose_one(f"{TRANSACTION}{lost:032x}")
        if random.random() < 0.3:
            segment = self._plane.records.get(SCOPE, stream).stream.epoch.segments[0]
            self._plane.streams.scale_stream(SCOPE, stream, [segment.segment_id], [segment.key_range])
            self._process_requests()

    def commits(self) -> list[Process]:
        """Several processors with the same messages. Sometimes there is none, and all is left to the end."""
        random, messages, run = self._random, self._messages, self._run
        run.collect()
        if random.random() < _UNTOUCHED_SHARE:
            return []
        self._losses.begin_storm()
        waiting = [each for each in run.waiting if each[0] != "abort"]
        works = [partial(messages.process_twice, each) for each in waiting for _ in range(random.randint(1, 3))]
        works = works[:_PROCESSORS_MAX]
        slow_at = _SLOW_AT_COMMITS if random.random() < _SLOW_SHARE else ((),)
        found = [
            Process("processor", work, slow_at=slow_calls)
            for work, slow_calls in zip(works, itertools.cycle(slow_at), strict=False)
        ]
        found += [Process("tick", messages.tick) for _ in range(random.randint(0, 1))]
        found += [Process("volumes", self._losses.lose_volumes) for _ in range(random.random() < 0.2)]
        return found or [Process("processor", messages.consume)]

    def _process_requests(self) -> None:
        self._run.collect()
        self._run.waiting = [each for each in self._run.waiting if each[0] != "request" or not self._is_processed(each)]

    def _is_processed(self, message: Message) -> bool:
        try:
            self._messages.process(message)
        except (CorruptError, NotFoundError):
            raise
        except HeadraceError:
            return False
        self._run.processed.append(message)
        return True

    # Several clients with the same transaction

    def prepare_shared(self) -> None:
        """Begin a transaction that clients will share, and others that will be in commit sets with it."""
        self._shared = []
        random, clients, successors = self._random, self._clients, self._successors
        with self._run.refusals_noted("storm"):
            shared = clients.begin_empty(random.choice(STREAMS), on_demand=random.random() < 0.8)[0].place
            found = [Process("successor", partial(successors.share, shared, 0), slow_at=_SLOW_AT_SHARED)]
            for _ in range(random.randint(1, 3)):
                work = partial(successors.share, shared, random.choice(_TURNS_BEFORE_SHARING))
                found.append(Process("successor", work))
            for number in range(random.randint(1, 3)):
                others = [clients.begin(random.choice(STREAMS)).place for _ in range(random.randint(1, 3))]
                work = partial(self._commit_with, random.choice(WRITERS), _SHARED_EPOCH + number, shared, others)
                found.append(
                    Process("set writer", work, slow_at=_SLOW_AT_SETS if random.random() < _SLOW_SHARE else ())
                )
                aborted = [other for other in others if random.random() < 0.8]
                found += [Process("aborter", partial(successors.abort, each, shared)) for each in aborted]
            self._shared = found
            self._run.note("storm on a transaction")

    def shared(self) -> list[Process]:
        """Clients that write into the transaction, and commit it alone or in sets that may be refused."""
        found, messages = list(self._shared), self._messages
        found += [Process("processor", messages.consume) for _ in range(self._random.randint(1, 2))]
        found += [Process("tick", messages.tick) for _ in range(self._random.randint(0, 1))]
        return found

    def _commit_with(self, writer: str, epoch: int, shared: Place, others: list[Place]) -> None:
        members: dict[str, list[int]] = {}
        for stream, identifier in (shared, *others):
            members.setdefault(stream, []).append(identifier)
        for _ in range(self._random.randint(0, _TURNS_MAX)):
            self._run.give_turn()
        home = self._random.choice(self._run.model.homes)
        with self._run.refusals_noted("set"):
            self._clients.commit_set(writer, home, epoch, members, attempts=1)


class SealStorms:
    """`prepare` makes calls without faults, and `processes` are those of the storm."""

    def __init__(self, run: ControllerRun, clients: Clients, messages: Messages) -> None:
        self._run = run
        self._random = run.random
        self._plane = run.plane
        self._clients = clients
        self._messages = messages
        self._storm: list[Process] = []

    def prepare(self) -> None:
        self._storm = []
        stream = self._random.choice(STREAMS)
        with self._run.refusals_noted("storm"):
            self._storm = self._random.choice((self._seals, self._followers, self._beginnings))(stream)

    def processes(self) -> list[Process]:
        return [*self._storm, Process("processor", self._messages.consume)]

    def _seals(self, stream: str) -> list[Process]:
        """Several processors with the message of a seal, which first commits a set in several runs."""
        self._commit(stream, 0)
        self._plane.streams.seal_stream(SCOPE, stream)
        self._run.collect()
        waiting = [each for each in self._run.waiting if each[0] == "request" and each[1].get("stream") == stream]
        works = [partial(self._messages.process_twice, waiting[-1]) for _ in range(self._random.randint(2, 4))]
        slow_at = itertools.cycle(_SLOW_AT_SEALS)
        self._run.note("storm of seals")
        return [
            Process("processor", work, slow_at=slow_calls) for work, slow_calls in zip(works, slow_at, strict=False)
        ]

    def _followers(self, stream: str) -> list[Process]:
        """A writer commits its next set while the former ones are committed in several runs."""
        for number in range(2):
            self._commit(stream, number)
        self._run.collect()
        waiting = [each for each in self._run.waiting if each[0] == "commit" and each[1].get("stream") == stream]
        found = [Process("processor", partial(self._messages.process_twice, each)) for each in waiting[:3]]
        for number in range(2, 2 + self._random.randint(1, 2)):
            work = partial(self._commit_noted, stream, number)
            found.append(Process("set writer", work, slow_at=_SLOW_AT_QUERIES))
        self._run.note("storm of sets that follow")
        return found

    def _beginnings(self, stream: str) -> list[Process]:
        """Clients begin transactions while the stream is sealed, or while their transactions are aborted."""
        works = [partial(self._begin, stream) for _ in range(self._random.randint(1, 3))]
        found = [Process("beginner", work, slow_at=_SLOW_AT_CREATIONS) for work in works]
        found.append(Process("ender", partial(self._end, stream)))
        self._run.note("storm of beginnings")
        return found

    def _commit(self, stream: str, number: int) -> None:
        epoch = _FOLLOWING_EPOCH + number
        label = f"{WRITERS[0]}/{epoch}/0"
        members = [self._clients.begin(stream, label).place[1] for _ in range(self._random.randint(3, 6))]
        self._clients.commit_set(WRITERS[0], self._run.model.homes[0], epoch, {stream: members}, attempts=1)

    def _commit_noted(self, stream: str, number: int) -> None:
        with self._run.refusals_noted("set"):
            self._commit(stream, number)

    def _begin(self, stream: str) -> None:
        for _ in range(2):
            with self._run.refusals_noted("transaction"):
                self._clients.begin_empty(stream, _LABEL, on_demand=False)

    def _end(self, stream: str) -> None:
        for _ in range(self._random.randint(1, 3)):
            with self._run.refusals_noted("end"):
                if self._random.random() < 0.5:
                    self._run.retry(lambda: self._plane.streams.seal_stream(SCOPE, stream))
                    self._messages.process_requests(stream)
                else:
                    self._run.retry(lambda: self._run.service().abort_labelled(SCOPE, stream, _LABEL))
            self._messages.consume()

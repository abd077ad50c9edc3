"""Storms on one stream: processors that seal it at once, sets that follow each other, late beginnings."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Final

from fuzz.controller_clients import Clients
from fuzz.controller_losses import CHECK
from fuzz.controller_merges import MERGE
from fuzz.controller_messages import Messages
from fuzz.controller_model import SCOPE, STREAMS, WRITERS
from fuzz.controller_run import ControllerRun
from fuzz.process_turns import Process

_EPOCH: Final = 70
_LABEL: Final = "late"
_SLOW_AT_SEALS: Final = ((f"before {CHECK}",), (f"after {MERGE}",), (f"before {CHECK}",), ())
"""A processor is slow before it looks for losses, while another one has merged a part of a set."""
_SLOW_AT_CREATIONS: Final = ("before segment store create",)
_SLOW_AT_QUERIES: Final = ("before between reads",)


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
        epoch = _EPOCH + number
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

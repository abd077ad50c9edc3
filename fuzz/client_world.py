"""What a random client program runs against: stores, a controller and a network, and the trouble that they make."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fuzz.client_controller import ClientController
from fuzz.client_model import ClientModel
from fuzz.client_network import ClientNetwork, NetworkFaults, StoreState
from fuzz.client_stores import ClientSession, StoreSide
from fuzz.client_streams import STORES, StoredStream
from fuzz.client_tokens import TokenBook
from fuzz.program_trace import Trace
from fuzz.randomness import Random

EVENTS: Final = "events"
BYTES: Final = "bytes"
_SEGMENTS_MAX: Final = 3
_PACES_S: Final = (0.01, 0.1, 1.0)
_DELAYS_S: Final = (0.0, 0.0, 0.002, 0.01, 0.3)
_SILENCES_S: Final = (0.02, 0.5, 5.0, 20.0, 60.0)
_OUTAGES_S: Final = (0.02, 0.5, 5.0)


class ClientWorld:
    """Everything around the clients of a program. `trouble` makes faults until `calm` ends them."""

    def __init__(self, random: Random, trace: Trace) -> None:
        self.model = ClientModel(trace)
        self._random = random
        self._trace = trace
        self._happened: Counter[str] = Counter()
        self._tasks: dict[asyncio.Future[Any], None] = {}
        self._is_calm = False
        self._pauses_s = random.choice(((0.0,), (0.0, 0.02), (0.0, 0.02, 1.0)))
        segments = random.randrange(1, _SEGMENTS_MAX + 1)
        self.events = StoredStream(EVENTS, random, segments, self.model.note_stored)
        self.bytes = StoredStream(BYTES, random, 1, lambda _segment, _data: None)
        streams = {EVENTS: self.events, BYTES: self.bytes}
        self.tokens = TokenBook(random, are_wanted=random.random() < 0.4)
        self.stores = [StoreState(number) for number in range(STORES)]
        self.store_side = StoreSide(streams, self.tokens, trace, self.model.report)
        self.faults = NetworkFaults(
            delay_s=random.choice(_DELAYS_S),
            reset_share=random.choice((0.0, 0.005, 0.02, 0.05)),
            lost_share=random.choice((0.0, 0.005, 0.02)),
            piece_bytes=random.choice((1, 13, 1 << 20)),
        )
        self.network = ClientNetwork(random, self.faults, self.stores, self.store_side.accept)
        self.store_side.network = self.network
        self.store_side.wrong_host_share = random.choice((0.0, 0.01))
        self.store_side.late_ack_share = random.choice((0.0, 0.3))
        self.controller = ClientController(random, streams, self.tokens, self.spawn, self.pause_s)
        self.controller.failing_share = random.choice((0.0, 0.03, 0.1))

    @property
    def happened(self) -> Counter[str]:
        found = Counter(self._happened)
        for part in (self.model, self.network, self.store_side, self.controller):
            found += part.happened
        return found

    @property
    def tasks(self) -> list[asyncio.Future[Any]]:
        return list(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run something to its end, also in the calm."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda _: self._tasks.pop(task))

    def pause_s(self) -> float:
        return 0.0 if self._is_calm else self._random.random() * self._random.choice(self._pauses_s)

    async def trouble(self, steps: int) -> None:
        """Make so many faults, one after the other."""
        random = self._random
        pace_s = random.choice(_PACES_S)
        choices: dict[Callable[[], None], float] = {
            self._scale: 0.25,
            self._move: 0.25,
            self._pause_store: 0.08,
            self._kill_store: 0.04,
            self._reset_connections: 0.08,
            self._silence_connection: 0.04,
            self._stop_controller: 0.04,
            self._end_tokens: 0.15,
            self._revoke_tokens: 0.03,
        }
        for _ in range(steps):
            await asyncio.sleep(random.random() * pace_s)
            if self._is_calm:
                return
            (choice,) = random.choices(list(choices), list(choices.values()))
            choice()

    def calm(self) -> None:
        """End all trouble, so that everything that was asked for must come to its end."""
        self._trace.note("calm")
        self._is_calm = self.faults.is_calm = self.controller.is_calm = True
        self.controller.is_down = False
        for store in self.stores:
            store.is_down = False
            self.network.resume(store)

    # Trouble

    def _scale(self) -> None:
        self._note("scales")
        self.spawn(self.events.scale(self.pause_s))

    def _move(self) -> None:
        self._note("moves")
        stream = self._random.choice((self.events, self.events, self.bytes))
        segment = stream.segments[self._random.choice(list(stream.segments))]
        segment.place = self._random.randrange(STORES)

    def _pause_store(self) -> None:
        store = self._random.choice(self.stores)
        self.network.pause(store)
        asyncio.get_running_loop().call_later(self._random.choice(_SILENCES_S), self.network.resume, store)
        if self._random.random() < 0.6:
            self._move_all(store)

    def _kill_store(self) -> None:
        store = self._random.choice(self.stores)
        self.network.kill(store)
        asyncio.get_running_loop().call_later(self._random.choice(_OUTAGES_S), setattr, store, "is_down", False)
        if self._random.random() < 0.6:
            self._move_all(store)

    def _move_all(self, store: StoreState) -> None:
        """Another store takes over what a store has."""
        others = [each.number for each in self.stores if each is not store]
        for stream in (self.events, self.bytes):
            for segment in stream.segments.values():
                if segment.place == store.number:
                    segment.place = self._random.choice(others)

    def _reset_connections(self) -> None:
        self._note("resets of connections")
        for connection in self.network.open:
            if self._random.random() < 0.5:
                connection.reset(drops_requests=self._random.random() < 0.5)

    def _silence_connection(self) -> None:
        if found := self.network.open:
            self._random.choice(found).go_silent()

    def _stop_controller(self) -> None:
        self._note("controller outages")
        self.controller.is_down = True
        asyncio.get_running_loop().call_later(
            self._random.choice(_OUTAGES_S), setattr, self.controller, "is_down", False
        )

    def _end_tokens(self) -> None:
        if not self.tokens.are_wanted:
            return
        for connection in self.network.open:
            session = connection.session
            assert isinstance(session, ClientSession), "the stores of this world accepted it"
            for writer_id in list(session.writers):
                if self._random.random() < 0.3:
                    session.end_token(writer_id)

    def _revoke_tokens(self) -> None:
        if self.tokens.are_wanted:
            self._note("revoked keys")
            self.tokens.revoke_all()

    def _note(self, what: str) -> None:
        self._trace.note(what)
        self._happened[what] += 1

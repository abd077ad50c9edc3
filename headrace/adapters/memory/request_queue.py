"""A FIFO queue in memory with the rules of SQS FIFO: groups, deduplication, redelivery, dead letters.

There is no clock for visibility time-outs: a consumer calls `release` where SQS would wait for the time-out, so that
tests decide when a message is delivered again.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.model.errors import NotFoundError
from headrace.model.requests import Requester
from headrace.ports.clock import Clock, require_time
from headrace.ports.request_queue import current_requester

DEDUPLICATION_WINDOW_MS = 5 * 60 * 1000
"""How long SQS remembers a deduplication id."""


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """`receipt` names this delivery; `receive_count` counts deliveries of the message, this one included."""

    receipt: str
    group: str
    body: dict[str, Any]
    deduplication_id: str
    receive_count: int
    requester: Requester | None = None


@dataclass(slots=True)
class _Waiting:
    group: str
    text: str
    deduplication_id: str
    requester: Requester | None = None
    receive_count: int = 0
    receipt: str | None = None


class MemoryRequestQueue:
    """`ports.request_queue.RequestQueue` and its consuming side; safe for any number of threads.

    With a clock, ids are remembered for `DEDUPLICATION_WINDOW_MS` as SQS does; without one, as long as their message is
    in the queue.
    """

    def __init__(self, clock: Clock | None = None, *, max_receive_count: int = 10) -> None:
        self._clock = clock
        self._max_receive_count = max_receive_count
        self._lock = threading.Lock()
        self._messages: list[_Waiting] = []
        self._dead: list[_Waiting] = []
        self._sent_at_ms: dict[str, int] = {}
        self._receipts = itertools.count(1)

    def send(self, *, group: str, body: Mapping[str, Any], deduplication_id: str) -> None:
        text = json.dumps(dict(body), separators=(",", ":"), allow_nan=False)
        require_time("sending a message")
        with self._lock:
            if not self._is_duplicate(deduplication_id):
                self._messages.append(_Waiting(group, text, deduplication_id, current_requester()))

    def receive(self, limit: int = 10) -> list[QueuedMessage]:
        """The next messages in order. A group with a message in flight is blocked until that one is settled."""
        with self._lock:
            blocked = {message.group for message in self._messages if message.receipt is not None}
            received: list[QueuedMessage] = []
            for message in [message for message in self._messages if message.group not in blocked][:limit]:
                message.receipt = f"receipt-{next(self._receipts)}"
                message.receive_count += 1
                received.append(_delivery(message, message.receipt))
            return received

    def acknowledge(self, receipt: str) -> None:
        """Delete a message whose work is complete."""
        with self._lock:
            self._messages.remove(self._in_flight(receipt))

    def release(self, receipt: str) -> None:
        """The visibility time-out has passed: the message is delivered again, or becomes a dead letter."""
        with self._lock:
            message = self._in_flight(receipt)
            message.receipt = None
            if message.receive_count >= self._max_receive_count:
                self._messages.remove(message)
                self._dead.append(message)

    def dead_letters(self) -> list[dict[str, Any]]:
        """The bodies of the messages in the dead-letter queue."""
        with self._lock:
            return [json.loads(message.text) for message in self._dead]

    def __len__(self) -> int:
        """Messages waiting or in flight."""
        with self._lock:
            return len(self._messages)

    def _is_duplicate(self, deduplication_id: str) -> bool:
        if self._clock is None:
            return any(message.deduplication_id == deduplication_id for message in self._messages)
        now_ms = self._clock.now_ms()
        live = {name: at for name, at in self._sent_at_ms.items() if now_ms - at < DEDUPLICATION_WINDOW_MS}
        duplicate = deduplication_id in live
        live.setdefault(deduplication_id, now_ms)
        self._sent_at_ms = live
        return duplicate

    def _in_flight(self, receipt: str) -> _Waiting:
        for message in self._messages:
            if message.receipt == receipt:
                return message
        raise NotFoundError(f"no message is in flight under {receipt!r}: it was settled already")


def _delivery(message: _Waiting, receipt: str) -> QueuedMessage:
    return QueuedMessage(
        receipt,
        message.group,
        json.loads(message.text),
        message.deduplication_id,
        message.receive_count,
        message.requester,
    )

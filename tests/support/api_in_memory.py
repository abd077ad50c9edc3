"""The HTTP API of all functions over memory adapters: a request goes in, the response of its function comes out.

Requests become events and results become responses as the local stack's gateway has it; there is no socket.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import httpx
import pytest

from functions import wiring
from headrace.adapters import audit_log
from headrace.adapters.gateway_events import HttpRequest, gateway_message, match_route, request_event, response_of
from headrace.adapters.memory.chunk_storage import MemoryChunkLinks, MemoryChunkStorage
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.adapters.memory.request_queue import MemoryRequestQueue
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.controller.write_dead_letter import handle_dead_letter
from headrace.local.lambda_host import LambdaHost
from headrace.metadata.cluster_records import claim_body, claim_sort
from headrace.metadata.transaction_messages import TransactionQueues
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.dead_letters import Cause, DeadLetter, Delivery
from headrace.ports.metadata_store import Create, Key
from headrace.topology import CONTAINER_COUNT, REQUESTS_QUEUE, ROUTES


class ApiInMemory:
    """All functions and what lies behind them. With `works` the queues are empty again after each request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.store = MemoryMetadataStore(TornReads(0))
        self.queues = {name: MemoryRequestQueue() for name in vars(wiring) if name.endswith("_queue")}
        self.queue = self.queues["request_queue"]
        self.queues |= {"commits": MemoryRequestQueue(), "aborts": MemoryRequestQueue()}
        transaction_queues = TransactionQueues(self.queues["commits"], self.queues["aborts"])
        self.segment_stores = MemorySegmentStores(self.clock)
        self.works = True
        links = MemoryChunkLinks(MemoryChunkStorage(), 900, self.clock)
        monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
        monkeypatch.setenv(audit_log.FILE, os.devnull)
        monkeypatch.setattr(wiring, "clock", lambda: self.clock)
        monkeypatch.setattr(wiring, "metadata_store", lambda: self.store)
        for name in set(self.queues) & set(vars(wiring)):
            monkeypatch.setattr(wiring, name, partial(_itself, self.queues[name]))
        monkeypatch.setattr(wiring, "commit_queue", lambda: transaction_queues.commits)
        monkeypatch.setattr(wiring, "abort_queue", lambda: transaction_queues.aborts)
        monkeypatch.setattr(wiring, "segment_stores", lambda: self.segment_stores)
        monkeypatch.setattr(wiring, "chunk_links", lambda: links)
        wiring.forget_services()
        self._host = LambdaHost(self.clock)

    def respond(self, request: httpx.Request) -> httpx.Response:
        """What API Gateway and the function behind it answer."""
        target = request.url.raw_path.decode("ascii")
        asked = HttpRequest(
            request.method, target, request.headers.multi_items(), request.content, "127.0.0.1", "HTTP/1.1"
        )
        match = match_route(ROUTES, request.method, target.partition("?")[0])
        if match is None:
            answer = gateway_message(404, "Not Found")
        else:
            event = request_event(asked, match, "request", self.clock.now_ms())
            answer = response_of(self._host.invoke(match.route.function, event))
        if self.works:
            self.work()
        response = httpx.Response(answer.status, headers=list(answer.headers), content=answer.body, request=request)
        response.elapsed = timedelta()
        return response

    def transport(self) -> httpx.MockTransport:
        """For `connect(..., transport=...)`."""
        return httpx.MockTransport(self.respond)

    def work(self) -> int:
        """Does all queued requests; how many there were."""
        done = 0
        processes: dict[str, Callable[[dict[str, Any]], object]] = {
            "commits": wiring.commit_processor().process,
            "aborts": wiring.abort_processor().process,
        }
        while batches := [(name, messages) for name, queue in self.queues.items() if (messages := queue.receive())]:
            for name, messages in batches:
                for message in messages:
                    processes.get(name, wiring.request_processor().process)(message.body)
                    self.queues[name].acknowledge(message.receipt)
                    done += 1
        return done

    def die(self, cause: Cause) -> DeadLetter | None:
        """The next queued message fails for the last time."""
        message = self.queue.receive(1)[0]
        self.queue.acknowledge(message.receipt)
        now_ms = self.clock.now_ms()
        delivery = Delivery(REQUESTS_QUEUE.name, message.group, json.dumps(message.body), now_ms - 60_000, 10)
        return handle_dead_letter(self.store, delivery, cause, now_ms)

    def claim_containers(self, host: str = "127.0.0.1", port: int = 12345) -> None:
        """A store owns every container, so that segments have an endpoint."""
        for container in range(CONTAINER_COUNT):
            claim = ContainerClaim("store-0", host, port, "local")
            self.store.write(Create(Key(CLUSTER_PARTITION, claim_sort(container)), claim_body(claim)))

    def contents(self) -> str:
        """Everything that is stored or queued, as text to compare before and after."""
        return repr(self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """What the metadata store, the queues and the segment stores hold."""
        segments = {name: held for name, held in vars(self.segment_stores).items() if isinstance(held, dict)}
        return self.store._partitions, {name: queue._messages for name, queue in self.queues.items()}, segments


def _itself(queue: MemoryRequestQueue) -> MemoryRequestQueue:
    return queue

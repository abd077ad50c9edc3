"""The latch of the health check, and the protection of a task. Neither depends on the table, S3 or other stores."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import write_lease, write_map
from headrace.metadata.container_log import NO_VERSION, write_container_log
from headrace.model.cluster import ContainerMap, StoreLease, registered
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.model.errors import UnavailableError
from segmentstore_fargate.health import ReplicatedPlace, SettledLatch
from segmentstore_fargate.layout import mark_settled
from segmentstore_fargate.task_protection import TaskProtection, protect_task, task_protection

pytestmark = pytest.mark.anyio

WAIT_S = 30.0
REPLICAS = [ReplicaId(bytes([number + 1]) * 16) for number in range(3)]


class Reasons:
    """Answers to a latch, one after the other; the last one is repeated."""

    def __init__(self, *answers: list[str] | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self) -> list[str]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.001)


def _cluster() -> MemoryMetadataStore:
    """Three stores, of which the first has container 0; its log has all copies."""
    store, now_ms = MemoryMetadataStore(), ManualClock().now_ms()
    for number, replica in enumerate(REPLICAS):
        lease = StoreLease(f"store-{number}", "h", 9, f"az{number}", 100, "v", "", 0, replica_id=replica.hex())
        store.write(write_lease(registered(lease, None, now_ms), None))
    store.write(write_map(ContainerMap({0: "store-0"}), None))
    log = ContainerLog(3, LogState.OPEN, tuple(REPLICAS), (LedgerStart(1, 0),))
    store.write(write_container_log(0, log, NO_VERSION))
    return store


async def test_the_latch_is_set_when_nothing_is_missing(tmp_path: Path):
    reasons = Reasons(["container 1 is not served"], UnavailableError("away"), RuntimeError("a defect"), [])
    latch = SettledLatch(tmp_path, 1, reasons, check_every_s=0.001)
    latch.start()
    await _until(lambda: latch.is_set)
    await latch.stop()
    assert reasons.asked == 4
    assert not SettledLatch(tmp_path, 0, reasons).is_set, "each process has its own"


async def test_a_settled_process_never_looks_again(tmp_path: Path):
    """Also after a restart on the volume: an outage then would fail the health check of every zone."""
    mark_settled(tmp_path, 0)
    reasons = Reasons(UnavailableError("DynamoDB is away"))
    latch = SettledLatch(tmp_path, 0, reasons, check_every_s=0.001)
    latch.start()
    await asyncio.sleep(0.01)
    await latch.stop()
    assert latch.is_set
    assert reasons.asked == 0


async def test_a_volume_that_refuses_the_latch_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    volume = tmp_path / "later"
    latch = SettledLatch(volume, 0, Reasons([]), check_every_s=0.001)
    latch.start()
    await _until(lambda: "event=settled_not_noted" in caplog.text)
    assert not latch.is_set
    volume.mkdir()
    await _until(lambda: latch.is_set)
    await latch.stop()


async def test_a_replicated_store_settles_with_what_the_table_says():
    served: list[int] = []
    place = ReplicatedPlace(_cluster(), "store-0", 2, lambda: served)
    assert await place.find_reasons() == ["container 0 is not served"]
    served.append(0)
    assert await place.find_reasons() == []


async def test_a_store_without_lease_replica_or_map_is_not_settled():
    store = _cluster()
    assert await ReplicatedPlace(store, "store-9", 2, lambda: ()).find_reasons() == ["this store has no lease"]
    bare = MemoryMetadataStore()
    lease = StoreLease("store-0", "h", 9, "az0", 100, "v", "", 0)
    bare.write(write_lease(registered(lease, None, 0), None))
    place = ReplicatedPlace(bare, "store-0", 2, lambda: ())
    assert await place.find_reasons() == ["this store has not registered its replica"]
    other = StoreLease("store-1", "h", 9, "az0", 100, "v", "", 0, replica_id=REPLICAS[0].hex())
    bare.write(write_lease(registered(other, None, 0), None))
    place = ReplicatedPlace(bare, "store-1", 2, lambda: ())
    assert await place.find_reasons() == ["the containers are not distributed yet"]


# Protection


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.close()


class Agent:
    """The ECS agent's endpoint: remembers requests, and replies what the test says."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.status, self.reply = 200, json.dumps({"protection": {"ProtectionEnabled": True, "TaskArn": "arn"}})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, self.headers["Content-Type"], json.loads(body)))
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(outer.reply.encode())

            def log_message(self, *_: Any) -> None:
                """Nothing on the standard error of the tests."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.uri = f"http://127.0.0.1:{self._server.server_port}/api/id"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


async def test_a_task_is_protected_for_two_minutes(agent: Agent):
    await asyncio.to_thread(protect_task, agent.uri)
    assert agent.requests == [
        (
            "/api/id/task-protection/v1/state",
            "application/json",
            {"ProtectionEnabled": True, "ExpiresInMinutes": 2},
        )
    ]


@pytest.mark.parametrize(
    ("status", "reply"),
    [
        (400, "{}"),
        (500, ""),
        (200, "not json"),
        (200, "[]"),
        (200, json.dumps({"failure": {"Reason": "TASK_NOT_VALID"}})),
        (200, json.dumps({"protection": {"ProtectionEnabled": False}})),
    ],
)
async def test_an_agent_that_refuses_is_reported(agent: Agent, status, reply):
    agent.status, agent.reply = status, reply
    with pytest.raises(UnavailableError, match="ECS agent"):
        await asyncio.to_thread(protect_task, agent.uri)


async def test_an_agent_that_is_away_is_reported():
    with pytest.raises(UnavailableError, match="ECS agent"):
        await asyncio.to_thread(protect_task, "http://127.0.0.1:9")


def test_nothing_is_asked_outside_of_ecs():
    assert task_protection({}, MemoryMetadataStore(), ManualClock(), REPLICAS[0], 2) is None


async def test_a_task_is_protected_while_logs_need_it(agent: Agent):
    """All three copies are there, then one store is silent: without this one, one copy would be left."""
    clock, store = ManualClock(), _cluster()
    protection = task_protection({"ECS_AGENT_URI": agent.uri}, store, clock, REPLICAS[0], 2)
    assert protection is not None
    assert await asyncio.to_thread(protection._find_needing) == ()
    clock.advance(12_001)
    assert await asyncio.to_thread(protection._find_needing) == (0,)
    protection.start()
    await _until(lambda: bool(agent.requests))
    await protection.stop()


async def test_protection_is_renewed_while_the_table_is_away(caplog: pytest.LogCaptureFixture):
    answers: list[tuple[int, ...] | Exception] = [(), (3,), UnavailableError("away"), UnavailableError("away"), ()]
    asked, protected = [], []

    def find() -> tuple[int, ...]:
        asked.append(len(asked))
        answer = answers[min(len(asked), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def protect() -> None:
        protected.append(asked[-1])
        if len(protected) == 2:
            raise UnavailableError("the agent is away")

    protection = TaskProtection(find, protect, renew_every_s=0.001)
    protection.start()
    await _until(lambda: len(asked) > len(answers))
    await protection.stop()
    assert protected == [1, 2, 3]
    assert "event=protection_not_judged" in caplog.text
    assert "event=task_not_protected" in caplog.text

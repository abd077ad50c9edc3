"""The process that works on the queues is killed again and again amid the lives of streams; each comes out right.

Real processes: a segment store, the AWS emulator with its queues, and a processor that is killed with SIGKILL at
moments from a seed. Messages that it held come again after their visibility time-out, here two seconds.
On a busy machine an operation takes longer than that, and its message comes again while it is worked on. So no number
of receives that comes about makes a dead letter.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from functions import wiring
from headrace import topology
from headrace.codec.events import frame_event
from headrace.local.resources import Resources, aws_client, create_resources
from headrace.metadata.intent import intents_partition
from headrace.model.errors import ConflictError, NotFoundError
from headrace.model.names import segment_name
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState

STREAMS = 4
KILLS = 6
RECEIVES_MAX = 1000
"""Far more than a message is received, even if it is killed with its processor every time."""

SEED = 20261121
PATIENCE_S = 600
"""Only turns a hang into a failure."""
WORKER = Path(__file__).parent.parent / "support" / "processor_process.py"
EVENT = frame_event(b"x" * 92)


@pytest.fixture
def resources(make_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Resources]:
    """Everything that is declared, the environment of a function, and a segment store that serves."""
    store = make_store(
        metadata_table=topology.METADATA_TABLE.name,
        chunk_bucket=topology.CHUNK_BUCKET.name,
        container_count=topology.CONTAINER_COUNT,
    )
    made = create_resources(store.environment["AWS_ENDPOINT_URL"])
    sqs = aws_client("sqs", made.endpoint)
    for queue in topology.QUEUES:
        url = made.queue_urls[queue.name]
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])["Attributes"]
        redrive = json.loads(attributes["RedrivePolicy"]) | {"maxReceiveCount": RECEIVES_MAX}
        changed = {"VisibilityTimeout": "2", "RedrivePolicy": json.dumps(redrive)}
        sqs.set_queue_attributes(QueueUrl=url, Attributes=changed)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    wiring.forget_services()
    store.start()
    yield made
    wiring.forget_services()


class MortalProcessor:
    """A processor that is killed and started again in the background, `KILLS` times; the last one lives on."""

    def __init__(self, endpoint: str, log: Path) -> None:
        self._endpoint = endpoint
        self._log = log
        self._random = random.Random(SEED)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.kills = 0

    def __enter__(self) -> MortalProcessor:
        self._start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._end()

    def _run(self) -> None:
        while self.kills < KILLS and not self._stopping.wait(self._random.uniform(0.05, 1.0)):
            self._end()
            self.kills += 1
            self._start()

    def _start(self) -> None:
        with self._log.open("a") as log:
            command = [sys.executable, str(WORKER), self._endpoint]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == "ready", self._log.read_text()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.mark.nightly
def test_repeated_kills_of_a_processor_change_no_outcome(resources: Resources, tmp_path: Path) -> None:
    wiring.scope_service().create_scope("s")
    with MortalProcessor(resources.endpoint, tmp_path / "processor.log") as processor:
        with ThreadPoolExecutor(STREAMS) as threads:
            for life in [threads.submit(_live, f"t{number}", number) for number in range(STREAMS)]:
                life.result()
        assert processor.kills >= 3, "nothing was tried"
    for number in range(STREAMS):
        _check(f"t{number}", number)
    store = wiring.metadata_store()
    buckets = range(topology.BUCKET_COUNT)
    assert [record for bucket in buckets for record in store.query(intents_partition(bucket), limit=10).records] == []


def _is_sealed(number: int) -> bool:
    return number % 3 != 0


def _is_deleted(number: int) -> bool:
    return number % 3 == 2


def _live(name: str, number: int) -> None:
    """Every operation that there is, one after the other, each asked for as soon as the one before is done."""
    streams, transactions = wiring.stream_service(), wiring.transaction_service()
    streams.create_stream("s", name, StreamConfiguration(ScalingPolicy.fixed(2), tags=("a", "b")))
    _until(name, StreamState.ACTIVE)
    _append(name, 0, events=3)
    created = transactions.create_transaction("s", name, 60_000)
    for segment in created.segments:
        wiring.segment_stores().append(segment.transaction_segment, EVENT * 2, 0)
    _ask(lambda: streams.scale_stream("s", name, [0], [KeyRange(0.0, 0.2), KeyRange(0.2, 0.5)]))
    _until(name, StreamState.ACTIVE)
    # Its epoch is not the active one any more: the commit rolls.
    _ask(lambda: transactions.commit_transaction("s", name, created.transaction_id))
    _until_epoch(name, 3)
    _ask(lambda: streams.update_stream("s", name, StreamConfiguration(ScalingPolicy.fixed(3), tags=("b", "c"))))
    _until(name, StreamState.ACTIVE)
    tail = wiring.segment_service().stream_cut("s", name, "tail")
    _ask(lambda: streams.truncate_stream("s", name, tail.offsets))
    _until(name, StreamState.ACTIVE)
    if _is_sealed(number):
        _ask(lambda: streams.seal_stream("s", name))
        _until(name, StreamState.SEALED)
    if _is_deleted(number):
        _ask(lambda: streams.delete_stream("s", name))
        _wait(lambda: _gone(name), f"{name} to be deleted")


def _append(name: str, segment_id: int, events: int) -> None:
    wiring.segment_stores().append(segment_name("s", name, segment_id), EVENT * events, 0)


def _check(name: str, number: int) -> None:
    tagged = {
        tag: any(summary.stream == name for summary in wiring.stream_service().list_streams("s", 100, tag=tag).items)
        for tag in "abc"
    }
    if _is_deleted(number):
        assert _gone(name)
        assert tagged == {"a": False, "b": False, "c": False}
        return
    assert tagged == {"a": False, "b": True, "c": True}
    service = wiring.segment_service()
    tail, head = service.stream_cut("s", name, "tail"), service.stream_cut("s", name, "head")
    assert head == tail, "truncated at its tail, and nothing came after"
    assert len(tail.positions) == 3
    infos = wiring.segment_stores().segment_infos([segment_name("s", name, identifier) for identifier in tail.offsets])
    assert {info.is_sealed for info in infos} == {_is_sealed(number)}
    before = wiring.segment_stores()
    with pytest.raises(NotFoundError):  # the truncation took what the roll passed through, and what was there at first
        before.segment_info(segment_name("s", name, 0))
    with pytest.raises(NotFoundError):
        before.segment_info(segment_name("s", name, 2 << 32 | 1))


def _ask(request: Callable[[], object]) -> None:
    """Another operation may still run, as far as the record tells."""

    def attempt() -> bool:
        try:
            request()
        except ConflictError:
            return False
        return True

    _wait(attempt, "a request to be accepted")


def _until(name: str, state: StreamState) -> None:
    _wait(lambda: wiring.stream_service().get_stream("s", name).state is state, f"{name} to be {state}")


def _until_epoch(name: str, epoch: int) -> None:
    def reached() -> bool:
        view = wiring.stream_service().get_stream("s", name)
        return view.epoch == epoch and view.state is StreamState.ACTIVE

    _wait(reached, f"{name} to be in epoch {epoch}")


def _gone(name: str) -> bool:
    try:
        wiring.stream_service().get_stream("s", name)
    except NotFoundError:
        return True
    return False


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {PATIENCE_S} s for {what}")
        time.sleep(0.05)

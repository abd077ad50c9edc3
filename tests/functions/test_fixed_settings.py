"""Functions of a deployment whose fixed settings were changed refuse all requests and messages, and look only once."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld
from lambda_context import FunctionContext

from functions import wiring
from functions.processors import (
    aborts,
    batches,
    commits,
    dead_letters,
    scaling_reports,
    store_tasks,
    stream_requests,
    tables,
    ticks,
)
from fuzz.watched_ports import Calls, WatchedStore
from headrace import topology
from headrace.metadata.fixed_settings import FixedSetting, check_fixed_setting, restoring_body
from headrace.metadata.restoration import SETTING_KEY
from headrace.model.errors import IllegalStateError
from headrace.ports.metadata_store import Replace

RECORDED = (FixedSetting.CONTAINERS, FixedSetting.BUCKETS)


@pytest.fixture
def calls(world: FunctionWorld, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Counts the requests of functions to the metadata store."""
    calls = Calls()
    watched = WatchedStore(world.store, calls)
    monkeypatch.setattr(wiring, "metadata_store", lambda: watched)
    wiring.forget_services()
    return calls


@pytest.fixture
def recorded(world: FunctionWorld) -> None:
    """The deployment has begun with its present settings."""
    check_fixed_setting(world.store, FixedSetting.CONTAINERS, topology.CONTAINER_COUNT)
    check_fixed_setting(world.store, FixedSetting.BUCKETS, topology.BUCKET_COUNT)


@pytest.mark.usefixtures("recorded")
def test_a_process_asks_once(call: Call, calls: Calls):
    counts = []
    for _ in range(3):
        assert call("GET", "/v1/scopes").status == 200
        counts.append(dict(calls.counts))
        calls.counts.clear()
    assert counts == [{"read": 1, "query": 1}, {"query": 1}, {"query": 1}]


def _change(setting: FixedSetting, monkeypatch: pytest.MonkeyPatch) -> int:
    """A process starts with 9 of them; how many the deployment began with."""
    match setting:
        case FixedSetting.CONTAINERS:
            began_with = topology.CONTAINER_COUNT
            monkeypatch.setenv("HEADRACE_CONTAINER_COUNT", "9")
        case _:
            began_with = topology.BUCKET_COUNT
            monkeypatch.setattr(topology, "BUCKET_COUNT", 9)
    wiring.forget_services()
    return began_with


@pytest.mark.usefixtures("recorded")
def test_functions_without_the_containers_of_s3_refuse(call: Call, world: FunctionWorld):
    check_fixed_setting(world.store, FixedSetting.S3_CONTAINERS, 4)
    answer = call("POST", "/v1/scopes", {"scopeName": "s"})
    assert (answer.status, answer.code) == (503, "setting_changed")


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("setting", RECORDED)
def test_a_changed_setting_is_refused(
    call: Call, world: FunctionWorld, monkeypatch: pytest.MonkeyPatch, setting: FixedSetting
):
    began_with = _change(setting, monkeypatch)
    before = world.contents()
    for _ in range(2):
        answer = call("POST", "/v1/scopes", {"scopeName": "s"})
        assert (answer.status, answer.code) == (503, "setting_changed")
        assert f"was started with {began_with} {setting} and is now configured for 9" in answer.body["error"]["message"]
    assert world.contents() == before
    monkeypatch.undo()


def test_a_setting_that_is_recorded_later_is_found(call: Call, world: FunctionWorld, calls: Calls):
    """A function that may only read records nothing: ticks and stores do."""
    assert call("GET", "/v1/scopes").status == 200
    assert set(calls.counts) == {"read", "query"}
    check_fixed_setting(world.store, FixedSetting.BUCKETS, topology.BUCKET_COUNT + 1)
    assert call("GET", "/v1/scopes").code == "setting_changed"


def _message(queue: topology.Queue, body: dict[str, Any], *, dead: bool = False) -> dict[str, Any]:
    """A message at its last delivery."""
    name = queue.dead_letter_name if dead else queue.name
    return {
        "messageId": "m-1",
        "receiptHandle": "r-1",
        "body": json.dumps(body),
        "attributes": {"MessageGroupId": "s/t", "ApproximateReceiveCount": str(queue.max_receive_count)},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:123456789012:{name}",
        "awsRegion": "us-east-1",
    }


_REQUEST = {"kind": "create_stream", "scope": "s", "stream": "t", "request": "create-0-0"}
_REPORT = {"format": 1, "kind": "hot", "segment": "s/t/0.#epoch.0", "rate": 9.0}
_MESSAGES = [
    pytest.param(stream_requests, _message(topology.REQUESTS_QUEUE, _REQUEST), id="stream-requests"),
    pytest.param(tables, _message(topology.TABLES_QUEUE, _REQUEST), id="tables"),
    pytest.param(commits, _message(topology.COMMITS_QUEUE, {"scope": "s", "stream": "t"}), id="commits"),
    pytest.param(aborts, _message(topology.ABORTS_QUEUE, {"scope": "s", "stream": "t"}), id="aborts"),
    pytest.param(scaling_reports, _message(topology.SCALING_REPORTS_QUEUE, _REPORT), id="scaling-reports"),
    pytest.param(dead_letters, _message(topology.REQUESTS_QUEUE, _REQUEST, dead=True), id="dead-letters"),
]


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("setting", RECORDED)
@pytest.mark.parametrize(("processor", "message"), _MESSAGES)
def test_a_message_stays_in_the_queue_while_a_setting_is_changed(
    processor: ModuleType,
    message: dict[str, Any],
    setting: FixedSetting,
    world: FunctionWorld,
    context: FunctionContext,
    monkeypatch: pytest.MonkeyPatch,
):
    """Also at its last delivery: no letter is written, and nothing is undone."""
    logged: list[str] = []
    monkeypatch.setattr(batches, "_try_again_soon", lambda _records: None)
    monkeypatch.setattr(
        "functions.processors.batches.logger.error", lambda text, *values, **_: logged.append(text % values)
    )
    began_with = _change(setting, monkeypatch)
    before = world.contents()
    for _ in range(2):
        answer = processor.handler({"Records": [message]}, context)
        assert answer == {"batchItemFailures": [{"itemIdentifier": "m-1"}]}
    assert world.contents() == before
    assert len(logged) == 2
    expected = (
        f"message stays in the queue: this deployment was started with {began_with} {setting} and is now configured for"
    )
    assert logged[0].startswith(expected)
    monkeypatch.undo()


@pytest.mark.usefixtures("recorded")
def test_a_queue_processor_asks_once(context: FunctionContext, calls: Calls):
    counts = []
    message = _message(topology.REQUESTS_QUEUE, _REQUEST)
    for _ in range(3):
        assert stream_requests.handler({"Records": [message]}, context) == {"batchItemFailures": []}
        counts.append(dict(calls.counts))
        calls.counts.clear()
    assert counts == [{"read": 3}, {"read": 2}, {"read": 2}]


_TICK = {"kind": topology.TICKS[0].kind, "bucket": 0}


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    ("processor", "message"),
    [*_MESSAGES, pytest.param(ticks, _message(topology.TICKS_QUEUE, _TICK), id="ticks")],
)
def test_no_message_is_worked_on_during_a_restore(
    processor: ModuleType,
    message: dict[str, Any],
    world: FunctionWorld,
    context: FunctionContext,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(batches, "_try_again_soon", lambda _records: None)
    setting = world.store.get(SETTING_KEY)
    assert setting is not None
    world.store.write(Replace(SETTING_KEY, restoring_body(setting, 1), setting.version))
    wiring.forget_services()
    before = world.contents()
    assert processor.handler({"Records": [message]}, context)["batchItemFailures"]
    assert world.contents() == before


@pytest.mark.usefixtures("recorded")
def test_no_lease_is_ended_during_a_restore(world: FunctionWorld, context: FunctionContext):
    setting = world.store.get(SETTING_KEY)
    assert setting is not None
    world.store.write(Replace(SETTING_KEY, restoring_body(setting, 1), setting.version))
    event = {"detail": {"taskArn": "arn:of-a-task", "lastStatus": "STOPPED"}}
    with pytest.raises(IllegalStateError, match="not finished"):
        store_tasks.handler(event, context)

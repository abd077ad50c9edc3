"""The canary as a function: its client asks the handlers in its own process, and real stores over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lambda_context import FunctionContext
from real_cluster import CONTAINERS, RealCluster, client_of, secure_cluster, serve_functions

from functions import wiring
from functions.processors import canary
from headrace.adapters import audit_log
from headrace.client import AsyncHeadrace, SegmentRange
from headrace.doctor import canary as doctor_canary
from headrace.doctor import round_trips
from headrace.doctor.canary import RETENTION, by_container, segments_needed
from headrace.model.errors import CorruptError, UnavailableError
from headrace.model.log_classes import ContainerLayout, LogClass
from headrace.model.names import segment_name
from headrace.topology import CANARY, CANARY_SCOPE


class Context(FunctionContext):
    """Of one call: Lambda gives each another id."""

    _function_name = "headrace-canary"
    calls = 0

    def __init__(self) -> None:
        super().__init__(lambda: CANARY.timeout_s * 1000)
        Context.calls += 1
        self._aws_request_id = f"request-{Context.calls}"


@pytest.fixture(params=["plain", "secure"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RealCluster]:
    made = secure_cluster(monkeypatch, tmp_path) if request.param == "secure" else RealCluster()
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    monkeypatch.setenv(audit_log.FILE, str(tmp_path / "audit.log"))
    serve_functions(made, monkeypatch)
    yield made
    made.close()
    wiring.forget_services()


def _reported(errors: str) -> dict[str, Any]:
    """The one document with metrics on standard error."""
    (line,) = [line for line in errors.splitlines() if '"_aws"' in line]
    document: dict[str, Any] = json.loads(line)
    return document


def _tell(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("event=canary_")]


def test_an_event_returns_from_each_container(cluster: RealCluster, capsys: pytest.CaptureFixture[str]):
    """At the first call there is no stream, and at the second one there are events of before."""
    for _ in range(2):
        assert canary.handler({}, Context()) == {"tried": CONTAINERS, "failed": 0}
        document = _reported(capsys.readouterr().err)
        assert document["Service"] == "headrace-canary"
        assert (document["CanaryWrites"], document["CanaryFailures"]) == (CONTAINERS, 0)
        assert document["CanaryDelayMs"] > 0


def test_a_failed_container_hides_no_other(
    cluster: RealCluster,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    read_events = round_trips.read_events
    layout = ContainerLayout(CONTAINERS)

    async def failing(client: AsyncHeadrace, part: SegmentRange) -> list[bytes]:
        container = layout.container_of_segment(segment_name(part.scope, part.stream, part.segment_id))
        if container == 1:
            raise CorruptError("its bytes are damaged")
        if container == 2:
            raise ZeroDivisionError
        return [] if container == 3 else await read_events(client, part)

    monkeypatch.setattr(round_trips, "read_events", failing)
    assert canary.handler({}, Context()) == {"tried": CONTAINERS, "failed": 3}
    document = _reported(capsys.readouterr().err)
    assert (document["CanaryWrites"], document["CanaryFailures"]) == (CONTAINERS, 3)
    assert document["CanaryDelayMs"] > 0, "of the container that is well"
    assert _tell(caplog) == [
        "event=canary_failed container=1 error='its bytes are damaged'",
        "event=canary_failed container=2 error='ZeroDivisionError()'",
        "event=canary_failed container=3 error='it was acknowledged, and is not among the 0 events that came back'",
    ]


def test_a_call_ends_while_no_store_answers(
    cluster: RealCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    canary.handler({}, Context())
    capsys.readouterr()
    cluster.kill_store()
    monkeypatch.setattr(canary, "LIMIT_S", 1.0)
    assert canary.handler({}, Context()) == {"tried": CONTAINERS, "failed": CONTAINERS}
    document = _reported(capsys.readouterr().err)
    assert document["CanaryFailures"] == CONTAINERS
    assert "CanaryDelayMs" not in document, "absent, not 0"


def test_a_controller_that_fails_fails_all_containers(
    cluster: RealCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def unavailable() -> None:
        raise UnavailableError("DynamoDB does not answer")

    monkeypatch.setattr(wiring, "segment_service", unavailable)
    monkeypatch.setattr(canary, "RETRY_S", 0.0)
    assert canary.handler({}, Context()) == {"tried": CONTAINERS, "failed": CONTAINERS}
    assert _tell(caplog)[0] == "event=canary_failed container=0 error='the controller: DynamoDB does not answer'"


def test_a_stream_that_was_sealed_hides_no_container(cluster: RealCluster, capsys: pytest.CaptureFixture[str]):
    canary.handler({}, Context())
    with client_of(cluster) as client:
        client.admin.seal_stream(CANARY_SCOPE, "canary")
    capsys.readouterr()
    canary.handler({}, Context())
    assert _reported(capsys.readouterr().err)["CanaryFailures"] == CONTAINERS


def test_a_stream_with_too_few_segments_hides_no_container(
    cluster: RealCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(doctor_canary, "segments_needed", lambda layout, log_class: 1)
    assert canary.handler({}, Context()) == {"tried": CONTAINERS, "failed": CONTAINERS - 1}
    assert all("delete this stream" in line for line in _tell(caplog))


def test_the_stream_of_the_canary_keeps_little(cluster: RealCluster):
    canary.handler({}, Context())
    with client_of(cluster) as client:
        made = client.admin.get_stream(CANARY_SCOPE, "canary")
    assert made.retention == RETENTION
    assert RETENTION.is_by_time
    assert RETENTION.minimum == 3_600_000


@pytest.mark.parametrize("layout", [ContainerLayout(1), ContainerLayout(8), ContainerLayout(64, 5)])
def test_the_segments_reach_each_container(layout: ContainerLayout):
    for log_class in LogClass:
        expected = {number for number in range(layout.count) if layout.class_of(number) is log_class}
        needed = segments_needed(layout, log_class) if expected else 0
        assert needed >= len(expected)


def test_a_container_has_the_first_of_its_segments():
    from headrace.api.segments import StartedSegment

    layout = ContainerLayout(4)
    segments = [
        StartedSegment(number, number / 9, (number + 1) / 9, segment_name(CANARY_SCOPE, "canary", number), -1)
        for number in range(9)
    ]
    found = by_container(layout, segments)
    assert list(found) == sorted(found)
    for container, segment in found.items():
        same = [each.segment_id for each in segments if layout.container_of_segment(each.name) == container]
        assert segment.segment_id == same[0]


def test_the_limit_leaves_time_to_report():
    """Half of it twice, the end of a reader and of the writer, and a request that has begun."""
    assert canary.LIMIT_S + 5 + round_trips.CLOSE_S + 8 < CANARY.timeout_s < 60

"""`headrace doctor` against a real cluster: what it asks, what it finds, and what it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import httpx
import pytest
from command_line import Run, runner
from healthy_cluster import NOW_MS as HEALTHY_MS
from healthy_cluster import healthy_facts, with_letters
from msgspec import structs
from real_cluster import RealCluster, client_of, connected_async, connected_to, secure_cluster, serve_functions

from functions import wiring
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.system_clock import SystemClock
from headrace.api.segments import SegmentEndpoint
from headrace.cli import doctor, session
from headrace.cli.outcome import ExitCode
from headrace.client import Headrace, ScalingPolicy
from headrace.client.administration.operators_admin import DeadLetterPage
from headrace.client.synchronous.synchronous_admin import Admin
from headrace.client.synchronous.synchronous_operators_admin import ClusterAdmin, DeadLettersAdmin
from headrace.doctor import data_path, examination, round_trips
from headrace.doctor.data_path import data_path_findings, segments_for
from headrace.doctor.examination import examine_deployment
from headrace.doctor.findings import CHECKS, Finding, Verdict
from headrace.model.dead_letters import DeadLetterStatus
from headrace.model.errors import (
    HeadraceError,
    IllegalStateError,
    NotFoundError,
    OutOfTimeError,
    UnauthorizedError,
    UnavailableError,
)
from headrace.model.stream_state import StreamState

CONTAINERS = 4
URL = "https://api.test"
DAY_MS = 86_400_000
NOON_MS = 1_800_014_400_000
"""15 January 2027, 12:00 UTC."""


@pytest.fixture
def run(
    real: RealCluster, headrace: Headrace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """`run("--deep")` runs `headrace doctor`."""
    monkeypatch.setattr(session, "open_client", lambda *_: connected_to(real))
    monkeypatch.setattr(session, "open_async_client", lambda *_: connected_async(real))
    monkeypatch.setenv("HEADRACE_URL", "http://127.0.0.1:9")  # where nothing answers a request without a signature
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    return runner(capsys, "doctor")


@pytest.fixture
def secured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RealCluster]:
    """A cluster that wants TLS and tokens."""
    cluster = secure_cluster(monkeypatch, tmp_path)
    serve_functions(cluster, monkeypatch)
    yield cluster
    cluster.close()
    wiring.forget_services()


def _by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def _examined(cluster: RealCluster, client: Headrace, clock: SystemClock | ManualClock) -> dict[str, Finding]:
    """What the examination of the data path finds in a stream of its own."""
    client.admin.create_scope("checks", exist_ok=True)
    client.admin.create_stream("checks", "path", scaling=ScalingPolicy.fixed(segments_for(CONTAINERS)))
    return _by_check(data_path_findings(client, lambda: connected_async(cluster), "checks", "path", CONTAINERS, clock))


def _findings(cluster: RealCluster, client: Headrace) -> dict[str, Finding]:
    """What the examination of the data path finds in the stream `shop/path`."""
    return _by_check(
        data_path_findings(client, lambda: connected_async(cluster), "shop", "path", CONTAINERS, SystemClock())
    )


def test_the_document_has_a_stable_form(run: Run):
    """Programs read it: fields are added, never renamed."""
    ran = run("--json")
    document = ran.document
    assert set(document) == {"verdict", "findings"}
    for finding in document["findings"]:
        assert set(finding) == {"check", "group", "verdict", "question", "evidence", "remedy", "page"}
        assert finding["check"] in CHECKS
        assert finding["verdict"] in {"well", "skipped", "warning", "failure"}
    assert [finding["check"] for finding in document["findings"]] == [
        check for check, described in CHECKS.items() if described.group in ("control plane", "stores", "security")
    ]


def test_failures_end_with_one_and_say_what_to_do(run: Run):
    """No store of this cluster has a lease, which is a fault."""
    ran = run()
    assert ran.code == ExitCode.REFUSED
    assert "FAILURE  stores" in ran.out
    assert "What to do" in ran.out
    assert "docs/operating/deploy.md#diagnose-a-store-that-does-not-start" in ran.out


def test_warnings_fail_a_strict_run_only(run: Run, monkeypatch: pytest.MonkeyPatch):
    found = [Finding("tokens", Verdict.WARNING, "off"), Finding("tls", Verdict.SKIPPED, "")]
    monkeypatch.setattr("headrace.doctor.examination.examine_deployment", lambda *_: list(found))
    assert run().code == ExitCode.DONE
    assert run("--strict").code == ExitCode.REFUSED
    found.pop(0)
    assert run("--strict").code == ExitCode.DONE


def test_account_is_examined_if_the_controller_is_silent(run: Run, monkeypatch: pytest.MonkeyPatch):
    """Its alarms and services say why; on a day without DynamoDB nothing else does."""

    def silent(*_: object) -> list[Finding]:
        raise UnavailableError("DynamoDB did not serve this")

    monkeypatch.setattr("headrace.doctor.examination.examine_deployment", silent)
    assert run().code == ExitCode.UNREACHABLE
    monkeypatch.setattr(doctor, "_account", object)
    monkeypatch.setattr(doctor, "_account_findings", lambda *_: [Finding("alarms", Verdict.FAILURE, "on: page")])
    ran = run("--aws")
    assert ran.code == ExitCode.UNREACHABLE
    assert "FAILURE  alarms" in ran.out
    assert "DynamoDB did not serve this" in ran.err


def test_an_examination_only_reads(real: RealCluster, headrace: Headrace):
    before = repr(real.metadata._partitions)
    methods: set[str] = set()

    def refuse(request: httpx.Request) -> httpx.Response:
        methods.add(request.method)
        return httpx.Response(403, headers={"date": "Fri, 15 Jan 2027 12:00:00 GMT"})

    examine_deployment(headrace, URL, SystemClock(), httpx.MockTransport(refuse))
    assert methods == {"GET"}
    assert repr(real.metadata._partitions) == before


def test_what_an_unsigned_request_answers_is_judged(headrace: Headrace):
    clock = ManualClock(NOON_MS + 61_000)
    date = {"date": "Fri, 15 Jan 2027 12:00:00 GMT"}
    answers = {403: Verdict.WELL, 200: Verdict.FAILURE}
    for status, verdict in answers.items():
        transport = httpx.MockTransport(lambda _, status=status: httpx.Response(status, headers=date))
        findings = _by_check(examine_deployment(headrace, URL, clock, transport))
        assert findings["signatures"].verdict is verdict
        assert "61 s ahead" in findings["clock"].evidence


def test_functions_are_asked_for_what_only_stores_know(headrace: Headrace):
    transport = httpx.MockTransport(lambda _: httpx.Response(403))
    finding = _by_check(examine_deployment(headrace, URL, SystemClock(), transport))["store-calls"]
    assert (finding.verdict, finding.evidence) == (Verdict.SKIPPED, "there is no stream to ask the stores about")
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2))
    finding = _by_check(examine_deployment(headrace, URL, SystemClock(), transport))["store-calls"]
    assert (finding.verdict, finding.evidence) == (
        Verdict.WELL,
        "stores answer the controller about 2 segments of shop/orders",
    )


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (UnavailableError("segment store 10.0.0.1:9 cannot be reached: timed out"), Verdict.FAILURE),
        (UnauthorizedError("no permission"), Verdict.SKIPPED),
        (NotFoundError("it was deleted"), Verdict.SKIPPED),
    ],
)
def test_functions_that_do_not_reach_the_stores_are_a_failure(
    real: RealCluster,
    headrace: Headrace,
    monkeypatch: pytest.MonkeyPatch,
    error: HeadraceError,
    verdict: Verdict,
):
    """What the function says is the evidence. A stream that is being created has no segment to ask about."""
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(2))
    get_stream = Admin.get_stream
    states = [StreamState.CREATING, StreamState.ACTIVE]
    headrace.admin.create_stream("shop", "before", scaling=ScalingPolicy.fixed(1))
    asked: list[str] = []

    def stream_cut(_: Admin, scope: str, stream: str) -> None:
        asked.append(f"{scope}/{stream}")
        raise error

    monkeypatch.setattr(Admin, "get_stream", lambda *args: structs.replace(get_stream(*args), state=states.pop(0)))
    monkeypatch.setattr(Admin, "stream_cut", stream_cut)
    transport = httpx.MockTransport(lambda _: httpx.Response(403))
    finding = _by_check(examine_deployment(headrace, URL, SystemClock(), transport))["store-calls"]
    assert finding.verdict is verdict
    assert finding.evidence.startswith(error.message)
    assert asked == ["shop/orders"]


def test_leases_are_judged_by_the_controllers_time(headrace: Headrace, monkeypatch: pytest.MonkeyPatch):
    """The clock of this machine is an hour ahead, and all leases last."""
    monkeypatch.setattr(ClusterAdmin, "get", lambda _: healthy_facts().cluster)
    date = {"date": format_datetime(datetime.fromtimestamp(HEALTHY_MS / 1000, UTC), usegmt=True)}
    transport = httpx.MockTransport(lambda _: httpx.Response(403, headers=date))
    findings = _by_check(examine_deployment(headrace, URL, ManualClock(HEALTHY_MS + 3_600_000), transport))
    assert findings["clock"].verdict is Verdict.FAILURE
    assert (findings["stores"].verdict, findings["ticks"].verdict) == (Verdict.WELL, Verdict.WELL)


def test_an_event_that_does_not_come_back_is_named(
    real: RealCluster, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
):
    """Another event is where it was written."""

    async def read_events(*_: object) -> list[bytes]:
        return [b"other"]

    monkeypatch.setattr(round_trips, "read_events", read_events)
    headrace.admin.create_stream("shop", "path", scaling=ScalingPolicy.fixed(segments_for(CONTAINERS)))
    finding = _findings(real, headrace)["round-trip"]
    assert finding.verdict is Verdict.FAILURE
    assert finding.evidence.startswith("4 of 4 containers: 0 (it was acknowledged, and is not among the 1 events")


def test_events_of_before_are_no_answer(real: RealCluster, headrace: Headrace):
    headrace.admin.create_stream("shop", "path", scaling=ScalingPolicy.fixed(segments_for(CONTAINERS)))
    with headrace.writer("shop", "path") as writer:
        for number in range(1_000):
            writer.write(b"check 0", f"other-{number}")
    assert _findings(real, headrace)["round-trip"].verdict is Verdict.WELL


def test_a_segment_without_a_store_is_named(real: RealCluster, headrace: Headrace, monkeypatch: pytest.MonkeyPatch):
    """The containers of the other segments are well."""
    endpoint = Admin.endpoint

    def without_some(admin: Admin, scope: str, stream: str, segment_id: int) -> SegmentEndpoint:
        if segment_id % 2:
            raise UnavailableError("its container moves")
        return endpoint(admin, scope, stream, segment_id)

    monkeypatch.setattr(Admin, "endpoint", without_some)
    finding = _examined(real, headrace, SystemClock())["round-trip"]
    assert (finding.verdict, finding.evidence) == (Verdict.FAILURE, "segments without a store: its container moves")


def test_a_date_beyond_all_dates_says_nothing(headrace: Headrace):
    date = {"date": f"Fri, 15 Jan {10**20} 12:00:00 GMT"}
    transport = httpx.MockTransport(lambda _: httpx.Response(403, headers=date))
    findings = _by_check(examine_deployment(headrace, URL, SystemClock(), transport))
    assert findings["clock"].verdict is Verdict.SKIPPED


def test_all_pages_of_dead_letters_are_read(headrace: Headrace, monkeypatch: pytest.MonkeyPatch):
    """Those that are done stay, so that the newest ones are behind the first page."""
    letters = tuple(with_letters(healthy_facts(), *[DeadLetterStatus.DONE] * 3, DeadLetterStatus.STUCK).letters)

    def page(_: object, *, after: str | None) -> DeadLetterPage:
        at = 0 if after is None else int(after) + 1
        return DeadLetterPage(letters[at : at + 1], str(at) if at + 1 < len(letters) else None)

    monkeypatch.setattr(DeadLettersAdmin, "page", page)
    transport = httpx.MockTransport(lambda _: httpx.Response(403))
    finding = _by_check(examine_deployment(headrace, URL, SystemClock(), transport))["dead-letters"]
    assert "1 STUCK: shop/orders-3" in finding.evidence
    monkeypatch.setattr(examination, "LETTER_PAGES_MAX", 3)
    finding = _by_check(examine_deployment(headrace, URL, SystemClock(), transport))["dead-letters"]
    assert finding.evidence == "none of the oldest 3 waits, and the others were not looked at"


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (OutOfTimeError("it is CREATING"), "failure"),
        (IllegalStateError("it is not sealed"), "failure"),
        (UnauthorizedError("it may not be made"), "skipped"),
    ],
)
def test_other_findings_stay_without_a_stream(
    error: HeadraceError, verdict: str, run: Run, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
):
    """No stream can be made while stores are away: that is when the other findings are needed."""

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Admin, "create_stream", refuse)
    ran = run("--deep", "--json")
    findings = {finding["check"]: finding for finding in ran.document["findings"]}
    assert findings["stores"]["verdict"] == "failure"
    assert findings["round-trip"]["verdict"] == verdict
    assert error.message in findings["round-trip"]["evidence"]
    assert headrace.admin.list_scopes() == ["shop"]


def test_a_stream_that_stays_is_named(run: Run, headrace: Headrace, monkeypatch: pytest.MonkeyPatch):
    """And the findings are shown."""

    def refuse(*_: object) -> None:
        raise IllegalStateError("it may not be deleted now")

    monkeypatch.setattr(Admin, "delete_stream", refuse)
    ran = run("--deep")
    (stream,) = headrace.admin.list_streams("headrace-checks")
    assert f"headrace-checks/{stream.stream} was not deleted: it may not be deleted now" in ran.err
    assert "round-trip" in ran.out


def test_a_missing_region_is_said_at_once(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(session, "open_client", lambda *_: pytest.fail("a request would be sent"))
    ran = run("--aws")
    assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
    assert "AWS_REGION" in ran.err


def test_a_deep_examination_leaves_nothing(run: Run, headrace: Headrace):
    shown = run("--deep", "--json").document["findings"]
    verdicts = {finding["check"]: finding["verdict"] for finding in shown}
    assert (verdicts["connections"], verdicts["round-trip"]) == ("well", "well")
    assert headrace.admin.list_scopes() == ["shop"]


def test_a_secured_data_path_is_examined_as_clients_use_it(secured: RealCluster):
    with client_of(secured) as client:
        findings = _examined(secured, client, SystemClock())
        assert {finding.verdict for finding in findings.values()} == {Verdict.WELL}, findings
        assert f"of {CONTAINERS} containers" in findings["round-trip"].evidence
        transport = httpx.MockTransport(lambda _: httpx.Response(403))
        security = _by_check(examine_deployment(client, URL, SystemClock(), transport))
    assert [security[check].verdict for check in ("signatures", "tokens", "tls")] == [Verdict.WELL] * 3


def test_a_certificate_that_ends_soon_is_named(secured: RealCluster):
    with client_of(secured) as client:
        findings = _examined(secured, client, ManualClock(SystemClock().now_ms() + 10_000 * DAY_MS))
    assert findings["certificates"].verdict is Verdict.WARNING
    assert "127.0.0.1:" in findings["certificates"].evidence


def test_a_store_that_is_away_is_named(real: RealCluster, headrace: Headrace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_path, "ANSWER_TIMEOUT_S", 0.5)
    headrace.admin.create_stream("shop", "path", scaling=ScalingPolicy.fixed(segments_for(CONTAINERS)))
    real.kill_store()
    findings = _findings(real, headrace)
    assert findings["connections"].verdict is Verdict.FAILURE
    assert findings["round-trip"].verdict is Verdict.FAILURE
    assert f"127.0.0.1:{real._port}" in findings["connections"].evidence

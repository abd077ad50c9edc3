"""`headrace bench` against a real cluster: it measures, verifies, and leaves nothing."""

from __future__ import annotations

import pytest
from command_line import Run, runner
from real_cluster import RealCluster, connected_to

from headrace.cli import bench_run, session
from headrace.cli.bench_run import Verification
from headrace.cli.outcome import ExitCode
from headrace.client import Headrace, ScalingPolicy, UnavailableError


@pytest.fixture
def run(
    real: RealCluster, headrace: Headrace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """`run("--seconds", "1")` runs `headrace bench`."""
    monkeypatch.setattr(session, "open_client", lambda *_: connected_to(real))
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")

    return runner(capsys, "bench")


def test_a_stream_of_its_own_is_measured_and_deleted(run: Run, headrace: Headrace):
    ran = run("--seconds", "1", "--rate", "200", "--event-bytes", "100", "--writers", "2", "--json")
    assert ran.code == 0, ran
    shown = ran.document
    assert (shown["verified"], shown["missing"], shown["removed"]) == (True, 0, True)
    assert 0 < shown["events"] <= 200 + shown["writers"]
    for times in (shown["acknowledgedMs"], shown["endToEndMs"]):
        assert list(times) == ["p50", "p90", "p99", "p99.9", "max"]
        assert list(times.values()) == sorted(times.values())
    assert headrace.admin.list_scopes() == ["shop"]


def test_events_of_a_given_stream_stay(run: Run, headrace: Headrace):
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop/orders") as writer:
        writer.write(b"of another program")
    ran = run("--seconds", "1", "--stream", "shop/orders", "--rate", "50")
    assert ran.code == 0, ran
    assert "each event came once, in the order of its key" in ran.out
    (stream,) = headrace.admin.list_streams("shop")
    assert stream.stream == "orders"
    assert headrace.admin.list_scopes() == ["shop"]


def test_a_scope_that_was_there_stays(run: Run, headrace: Headrace):
    headrace.admin.create_scope("bench")
    assert run("--seconds", "1", "--rate", "10").code == 0
    assert headrace.admin.list_streams("bench") == []
    assert "bench" in headrace.admin.list_scopes()


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "headrace bench: interrupted: nothing was measured\n"),
        (UnavailableError("no store"), ExitCode.UNREACHABLE, "headrace bench: no store\n"),
    ],
    ids=["Ctrl-C", "an error"],
)
def test_an_end_before_its_time_leaves_nothing(
    run: Run, headrace: Headrace, monkeypatch: pytest.MonkeyPatch, problem: BaseException, code: ExitCode, said: str
):
    def fail(*_: object) -> None:
        raise problem

    monkeypatch.setattr(bench_run.BenchRun, "_wait", fail)
    ran = run("--seconds", "1000", "--rate", "10")
    assert ran.code == code
    assert ran.err.endswith(said)
    assert headrace.admin.list_scopes() == ["shop"]


def test_a_fault_is_an_error_that_names_it(run: Run, monkeypatch: pytest.MonkeyPatch):
    add = Verification.add
    monkeypatch.setattr(bench_run, "PATIENCE_S", 0.5)
    monkeypatch.setattr(Verification, "add", lambda self, events: add(self, events[1:] if self.read == 0 else events))
    ran = run("--seconds", "1", "--rate", "100")
    assert ran.code == ExitCode.REFUSED
    assert "NO: 1 missing" in ran.out


@pytest.mark.parametrize("wrong", [("--event-bytes", "10"), ("--rate", "0"), ("--writers", "1000"), ("--seconds", "x")])
def test_values_out_of_bounds_are_refused(run: Run, headrace: Headrace, wrong: tuple[str, str]):
    ran = run(*wrong)
    assert ran.code in (ExitCode.REFUSED, ExitCode.USAGE)
    assert wrong[0] in ran.err
    assert headrace.admin.list_scopes() == ["shop"]

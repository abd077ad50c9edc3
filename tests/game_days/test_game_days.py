"""Game days on a local stack: the fault of each, the work that goes on through it, and the signals that must come."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from day_signals import Alarms, StoreLogs
from game_days import DAYS, Signals
from ordered_stack import OrderedStack
from steady_work import EVENTS, SCOPE, SteadyWork, until

from headrace.adapters.system_clock import SystemClock
from headrace.adapters.token_key_editors import TokenKeyFileEditor, revoke, rotate
from headrace.adapters.token_keys import LIFE_MAX_S
from headrace.cli import main
from headrace.cli.outcome import ExitCode
from headrace.client import connect
from headrace.doctor.examination import examine_deployment
from headrace.doctor.findings import Verdict
from headrace.local.tokens import KEYS_NAME
from headrace.model.errors import HeadraceError

HALF_OPEN = 2_000
OUTAGE_S = 20.0
"""Longer than a lease."""
JOURNAL_ROOM_BYTES = 64 * 1024
BURST = 5_000


@pytest.fixture
def doctor(stack: OrderedStack) -> Iterator[Callable[[], set[str]]]:
    """Asks the doctor for the checks that find something wrong. It has none while the controller does not answer."""
    with connect(stack.url) as headrace:

        def unwell() -> set[str]:
            try:
                findings = examine_deployment(headrace, stack.url, SystemClock())
            except HeadraceError:
                return set()
            return {each.check for each in findings if each.verdict in (Verdict.WARNING, Verdict.FAILURE)}

        yield unwell


@pytest.fixture
def signals(request: pytest.FixtureRequest) -> Signals:
    """Those that are declared for the day of the test."""
    return next(day.signals for day in DAYS if day.test == request.node.originalname)


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _store(stack: OrderedStack, index: int) -> dict[str, Any]:
    found: dict[str, Any] = stack.state["segmentStores"][index]
    return found


def _await_checks(work: SteadyWork, doctor: Callable[[], set[str]], checks: tuple[str, ...], before: set[str]) -> None:
    missing = set(checks)
    assert not missing & before, "they would come without the fault"

    def have_come() -> bool:
        missing.difference_update(doctor())
        return not missing

    until(have_come, work, f"the doctor does not find {checks}")


def _await_events(work: SteadyWork, logs: StoreLogs, events: tuple[str, ...]) -> None:
    for event in events:
        until(lambda event=event: logs.events(event) > 0, work, f"no store logs {event}")


def _await_metrics(work: SteadyWork, logs: StoreLogs, names: tuple[str, ...]) -> None:
    for name in names:
        until(lambda name=name: logs.reported(name) > 0, work, f"no store reports {name}")


def _await_alarms(work: SteadyWork, alarms: Alarms, logs: StoreLogs, names: tuple[str, ...]) -> None:
    for name in names:
        until(lambda name=name: alarms.is_breached(name, logs), work, f"nothing raises {name}")


def _await_well(work: SteadyWork, doctor: Callable[[], set[str]], before: set[str]) -> None:
    until(lambda: doctor() <= before, work, "the doctor does not find all well")
    work.await_progress()


def test_killed_task(
    stack: OrderedStack, work: SteadyWork, logs: StoreLogs, doctor: Callable[[], set[str]], signals: Signals
):
    before = doctor()
    store = _store(stack, 1)
    directory = Path(store["dataDir"])
    gone = directory.with_name(f"{directory.name}-gone")
    directory.rename(gone)
    os.kill(store["pid"], signal.SIGKILL)
    shutil.rmtree(gone)
    _await_checks(work, doctor, signals.checks, before)
    _await_events(work, logs, signals.events)
    _await_well(work, doctor, before)
    work.end()


@pytest.mark.nightly
def test_isolated_zone(
    stack: OrderedStack, work: SteadyWork, logs: StoreLogs, doctor: Callable[[], set[str]], signals: Signals
):
    before = doctor()
    with _stopped(_store(stack, 2)["pid"]):
        _await_checks(work, doctor, signals.checks, before)
        work.await_progress()
    _await_events(work, logs, signals.events)
    _await_well(work, doctor, before)
    work.end()


@pytest.mark.nightly
def test_dynamodb_unreachable(
    stack: OrderedStack,
    work: SteadyWork,
    logs: StoreLogs,
    doctor: Callable[[], set[str]],
    signals: Signals,
    capsys: pytest.CaptureFixture[str],
):
    before = doctor()
    stack.order("unreachable dynamodb")
    assert main(["doctor", "--url", stack.url, "--retry-s", "0"]) == ExitCode.UNREACHABLE
    assert "DynamoDB did not serve this" in capsys.readouterr().err
    time.sleep(OUTAGE_S)
    stack.order("well")
    _await_events(work, logs, signals.events)
    _await_metrics(work, logs, signals.metrics)
    _await_well(work, doctor, before)
    work.end()


@pytest.mark.nightly
def test_throttled_s3(
    stack: OrderedStack,
    work: SteadyWork,
    logs: StoreLogs,
    alarms: Alarms,
    doctor: Callable[[], set[str]],
    signals: Signals,
):
    before = doctor()
    stack.order("throttled s3")
    _await_events(work, logs, signals.events)
    _await_alarms(work, alarms, logs, signals.alarms)
    work.await_progress()
    stack.order("well")
    _await_well(work, doctor, before)
    work.end()


@pytest.mark.nightly
def test_full_volume(
    stack: OrderedStack,
    work: SteadyWork,
    logs: StoreLogs,
    alarms: Alarms,
    doctor: Callable[[], set[str]],
    signals: Signals,
):
    """No file of the process may grow, as on a volume without room."""
    before = doctor()
    resource.prlimit(_store(stack, 1)["pid"], resource.RLIMIT_FSIZE, (JOURNAL_ROOM_BYTES, JOURNAL_ROOM_BYTES))
    _await_events(work, logs, signals.events)
    _await_alarms(work, alarms, logs, signals.alarms)
    _await_well(work, doctor, before)
    work.end()


@pytest.mark.nightly
def test_revoked_key(
    stack: OrderedStack, work: SteadyWork, logs: StoreLogs, doctor: Callable[[], set[str]], signals: Signals
):
    before = doctor()
    editor, clock = TokenKeyFileEditor(stack.directory / KEYS_NAME), SystemClock()
    keys = rotate(editor, clock, LIFE_MAX_S)
    revoke(editor, keys.signing_key(clock.now_ms() / 1_000).key_id, clock)
    _await_events(work, logs, signals.events)
    _await_metrics(work, logs, signals.metrics)
    _await_well(work, doctor, before)
    work.end()


def test_half_open_connections(stack: OrderedStack, work: SteadyWork, logs: StoreLogs, signals: Signals):
    store = _store(stack, 0)
    with _open_files(2 * HALF_OPEN), ExitStack() as held:
        for _ in range(HALF_OPEN):
            held.enter_context(socket.create_connection((store["host"], store["port"])))
        work.await_progress()
        _await_events(work, logs, signals.events)
    work.await_progress()
    work.end()


@contextmanager
def _open_files(count: int) -> Iterator[None]:
    """This process may open so many files."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, min(count, most)), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@pytest.mark.nightly
def test_burst_of_one_key(stack: OrderedStack, work: SteadyWork):
    """The events of the burst have a stream of their own segments' owner: they share stores and connections."""
    with connect(stack.url) as headrace:
        headrace.admin.create_stream(SCOPE, "burst")
        with headrace.writer(SCOPE, "burst") as writer:
            for number in range(BURST):
                writer.write(b"%d" % number, routing_key="one")
            work.await_progress()
        headrace.admin.seal_stream(SCOPE, "burst")
        with headrace.reader(SCOPE, "burst", start="earliest") as reader:
            assert [int(event.event) for event in reader] == list(range(BURST))
        assert headrace.admin.stream_cut(SCOPE, EVENTS, at="latest").positions
    work.end()

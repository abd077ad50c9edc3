"""Game days on a local stack: the fault of each, the work that goes on through it, and the signals that must come."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
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
from headrace.certificate_names import dns_name, store_label
from headrace.cli import main
from headrace.cli.outcome import ExitCode
from headrace.client import connect
from headrace.doctor.examination import examine_deployment
from headrace.doctor.findings import Verdict
from headrace.local.certificates import FILE_NAME
from headrace.local.tokens import KEYS_NAME
from headrace.model.certificate_authorities import LEAF_LIFE_S
from headrace.model.container_logs import COPIES
from headrace.model.dead_letters import DeadLetterStatus
from headrace.model.errors import HeadraceError
from headrace.wire.tls import client_context

HALF_OPEN = 2_000
OUTAGE_S = 20.0
"""Longer than a lease."""
JOURNAL_ROOM_BYTES = 64 * 1024
BURST = 5_000
FIRST_CERTIFICATES_S = 3_600
LAST_CERTIFICATES_S = 150
"""Longer than the stores need to load them."""
OVER = {DeadLetterStatus.DONE, DeadLetterStatus.REPLAYED}


@dataclass(frozen=True, slots=True)
class Day:
    """A day that runs: its stack, the work on it, what can be seen, and the signals that must come."""

    stack: OrderedStack
    work: SteadyWork
    logs: StoreLogs
    alarms: Alarms
    doctor: Callable[[], set[str]]
    signals: Signals
    before: set[str]
    """What the doctor found before the fault."""

    def store(self, index: int) -> dict[str, Any]:
        found: dict[str, Any] = self.stack.state["segmentStores"][index]
        return found

    def await_checks(self) -> None:
        missing = set(self.signals.checks)
        assert not missing & self.before, "they would come without the fault"

        def have_come() -> bool:
            missing.difference_update(self.doctor())
            return not missing

        until(have_come, self.work, f"the doctor does not find {self.signals.checks}")

    def await_events(self) -> None:
        for event in self.signals.events:
            until(partial(self.logs.events, event), self.work, f"no store logs {event}")

    def await_metrics(self) -> None:
        for name in self.signals.metrics:
            until(partial(self.logs.reported, name), self.work, f"no store reports {name}")

    def await_alarms(self) -> None:
        for name in self.signals.alarms:
            until(partial(self.alarms.is_breached, name, self.logs), self.work, f"nothing raises {name}")

    def end(self, *, may_abort: bool = False) -> None:
        """All stores run, all is as before the fault, and the work has lost nothing."""
        until(lambda: all(self.store(each)["pid"] for each in range(COPIES)), self.work, "a store does not run")
        until(lambda: self.doctor() <= self.before, self.work, "the doctor does not find all well")
        self.work.await_progress()
        self.work.end(may_abort=may_abort)


@pytest.fixture
def day(
    stack: OrderedStack, work: SteadyWork, logs: StoreLogs, alarms: Alarms, request: pytest.FixtureRequest
) -> Iterator[Day]:
    """The day of the test. The doctor finds nothing while the controller does not answer."""
    signals = next(day.signals for day in DAYS if day.test == request.node.originalname)
    with connect(stack.url) as headrace:

        def unwell() -> set[str]:
            try:
                findings = examine_deployment(headrace, stack.url, SystemClock())
            except HeadraceError:
                return set()
            return {each.check for each in findings if each.verdict in (Verdict.WARNING, Verdict.FAILURE)}

        yield Day(stack, work, logs, alarms, unwell, signals, unwell())


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_killed_task(day: Day):
    store = day.store(1)
    directory = Path(store["dataDir"])
    gone = directory.with_name(f"{directory.name}-gone")
    directory.rename(gone)
    directory.mkdir()
    (gone / FILE_NAME).rename(directory / FILE_NAME)  # on AWS the certificate is not on the volume
    day.stack.order("leave-dead")
    os.kill(store["pid"], signal.SIGKILL)
    shutil.rmtree(gone)
    day.await_checks()  # the doctor waits for stores: a replacement could complete the logs before it looks again
    day.await_events()
    day.stack.order("replace-dead")
    day.end()


@pytest.mark.nightly
def test_isolated_zone(day: Day):
    with _stopped(day.store(2)["pid"]):
        day.await_checks()
        day.work.await_progress()
    day.await_events()
    day.end()


@pytest.mark.nightly
def test_dynamodb_unreachable(day: Day, capsys: pytest.CaptureFixture[str]):
    day.stack.order("unreachable dynamodb")
    assert main(["doctor", "--url", day.stack.url, "--retry-s", "0"]) == ExitCode.UNREACHABLE
    assert "DynamoDB did not serve this" in capsys.readouterr().err
    time.sleep(OUTAGE_S)
    day.stack.order("well")
    day.await_events()
    day.await_metrics()
    day.end()


@pytest.mark.nightly
def test_throttled_s3(day: Day):
    day.stack.order("throttled s3")
    day.await_events()
    day.await_alarms()
    day.work.await_progress()
    day.stack.order("well")
    day.end()


@pytest.mark.nightly
def test_full_volume(day: Day):
    """No file of the process may grow, as on a volume without room."""
    resource.prlimit(day.store(1)["pid"], resource.RLIMIT_FSIZE, (JOURNAL_ROOM_BYTES, JOURNAL_ROOM_BYTES))
    day.await_events()
    day.await_alarms()
    day.end()


@pytest.mark.nightly
def test_revoked_key(day: Day):
    editor, clock = TokenKeyFileEditor(day.stack.directory / KEYS_NAME), SystemClock()
    keys = rotate(editor, clock, LIFE_MAX_S)
    revoke(editor, keys.signing_key(clock.now_ms() / 1_000).key_id, clock)
    day.await_events()
    day.await_metrics()
    day.end()


@pytest.mark.nightly
@pytest.mark.parametrize("stack", [FIRST_CERTIFICATES_S], indirect=True)
def test_expired_certificate(day: Day):
    """A store reads its certificate each minute, since less than a day is left. The next one ends in a few minutes."""
    day.await_alarms()
    loaded = day.logs.events("certificate_loaded")
    day.stack.order(f"certificates {LAST_CERTIFICATES_S}")
    until(
        lambda: day.logs.events("certificate_loaded") >= loaded + COPIES,
        day.work,
        "the stores do not load the certificates",
    )
    with connect(day.stack.url) as headrace:
        trust = headrace.admin.trust.authorities().pem
    ends = [_certificate_end_s(day.store(index), trust) for index in range(COPIES)]
    until(lambda: time.time() > max(ends), day.work, "the certificates do not end")
    for index in range(COPIES):
        with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
            _certificate_end_s(day.store(index), trust)
    day.work.await_progress()
    day.await_events()
    day.await_metrics()
    day.stack.order(f"certificates {LEAF_LIFE_S}")
    until(lambda: all(_has_certificate(day.store(each), trust) for each in range(COPIES)), day.work, "none is loaded")
    day.end()


def _certificate_end_s(store: dict[str, Any], trust: str) -> float:
    """The end of the certificate that the store shows to a new client."""
    context = client_context(trust)
    name = dns_name(store_label(int(store["id"].rpartition("-")[2])))
    with (
        socket.create_connection((store["host"], store["port"])) as plain,
        context.wrap_socket(plain, server_hostname=name) as encrypted,
    ):
        shown = encrypted.getpeercert()
    assert shown is not None
    return ssl.cert_time_to_seconds(str(shown["notAfter"]))


def _has_certificate(store: dict[str, Any], trust: str) -> bool:
    try:
        return bool(_certificate_end_s(store, trust))
    except ssl.SSLCertVerificationError:
        return False


def test_half_open_connections(day: Day):
    store = day.store(0)
    with _open_files(2 * HALF_OPEN), ExitStack() as held:
        for _ in range(HALF_OPEN):
            held.enter_context(socket.create_connection((store["host"], store["port"])))
        day.work.await_progress()
        day.await_events()
    day.end()


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
def test_burst_of_one_key(day: Day):
    """The events of the burst have a stream of their own segments' owner: they share stores and connections."""
    with connect(day.stack.url) as headrace:
        headrace.admin.create_stream(SCOPE, "burst")
        with headrace.writer(SCOPE, "burst") as writer:
            for number in range(BURST):
                writer.write(b"%d" % number, routing_key="one")
            day.work.await_progress()
        headrace.admin.seal_stream(SCOPE, "burst")
        with headrace.reader(SCOPE, "burst", start="earliest") as reader:
            assert [int(event.event) for event in reader] == list(range(BURST))
        assert headrace.admin.stream_cut(SCOPE, EVENTS, at="latest").positions
    day.end()


@pytest.mark.nightly
def test_replay_of_dead_letters(day: Day):
    day.stack.order("one-attempt")
    day.stack.order("stop-stores")
    with connect(day.stack.url) as headrace:

        def ids_of_segments() -> set[int]:
            return {each.segment_id for each in headrace.admin.segments(SCOPE, EVENTS)}

        before = ids_of_segments()
        split = headrace.admin.segments(SCOPE, EVENTS)[0]
        halves = [(split.low, (split.low + split.high) / 2), ((split.low + split.high) / 2, split.high)]
        headrace.admin.scale_stream(SCOPE, EVENTS, seal=[split.segment_id], ranges=halves, wait=False)
        day.await_checks()
        day.stack.order("start-stores")
        letters = headrace.admin.dead_letters
        replayed = [each.letter for each in letters.page().letters]
        for letter in [*replayed, *replayed]:
            letters.replay(letter)
        until(lambda: {each.status for each in letters.page().letters} <= OVER, day.work, "a letter is not done")
        until(lambda: split.segment_id not in ids_of_segments(), day.work, "nothing is split")
        for letter in replayed:
            letters.drop(letter)
        day.work.await_progress()
        assert len(ids_of_segments() & before) == len(before) - 1
        assert len(ids_of_segments() - before) == len(halves), "it is split twice"
    # A store that loses its claim while it opens a container leaves a gap of epochs. The next one suspects a loss.
    day.end(may_abort=True)

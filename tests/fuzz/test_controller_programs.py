"""A few seeds of the random programs on the controller, deliberate bugs that they find, and how their processes end."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from whole_trace import WholeTrace

from fuzz import controller_programs, process_turns
from fuzz.checker import WrongStateError
from fuzz.controller_programs import run_controller_program
from fuzz.process_turns import Faults, Process, Turns
from fuzz.program_trace import STEPS_KEPT, Trace
from fuzz.randomness import Random
from fuzz.watched_ports import Calls
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.controller.operations import delete_reader_group
from headrace.controller.services import auto_scaling
from headrace.controller.services import commit_set_service as set_service
from headrace.controller.services.auto_scaling import AutoScalingService
from headrace.controller.services.transaction_service import TransactionService
from headrace.controller.steps import transaction_commits
from headrace.controller.steps.transaction_aborts import TransactionAborts
from headrace.controller.steps.transaction_commits import TransactionCommits
from headrace.metadata import retention_plans
from headrace.metadata.commit_records import commit_run_key
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.metadata.subscriber import SubscriberRecords
from headrace.metadata.transaction_records import TransactionRecords
from headrace.model import commit_sets
from headrace.model.commit_sets import CommitRun, PlannedRun, plan_run
from headrace.model.streams import Stream
from headrace.model.transactions import TransactionState
from headrace.ports.clock import require_time_for_piece
from headrace.ports.metadata_store import Check

SEED_OF_FORGOTTEN_MEMBER = 2
SEED_OF_IGNORED_EPOCH = 5
SEED_OF_LEFT_SEGMENT = 1
SEED_OF_LEFT_SUBSCRIPTION = 52
SEED_OF_UNREAD_EVENTS = 6
SEED_OF_RELEASED_MEMBER = 457
SEED_OF_UNSEEN_LOSS = 140
SEED_OF_COMMIT_BY_ANOTHER = 65
SEED_OF_ENDLESS_ABORTS = 63
SEED_OF_WARM_NEIGHBOUR = 11
SEED_OF_OLD_REPORT = 26
SEED_OF_MERGE_TAKEN_FOR_LOSS = 342
SEED_OF_LATE_SEGMENT = 50
SEED_OF_OLD_EVENTS = 14
SEED_OF_YOUNG_EVENTS = 102
SEEDS_OF_LATE_ANSWERS = (2055, 2230)
"""A client learns of its transaction when the stream was created again; a segment is created after it has ended."""


@pytest.fixture
def threads_end() -> Iterator[None]:
    """The test leaves no thread."""
    before = threading.enumerate()
    yield
    assert threading.enumerate() == before


@pytest.mark.parametrize("seed", [*range(1, 13), *SEEDS_OF_LATE_ANSWERS])
def test_controller_is_as_its_model(seed: int):
    happened = run_controller_program(seed, Trace())
    assert happened.total() > 0


def test_a_seed_does_the_same_in_each_run():
    first, second = WholeTrace(), WholeTrace()
    assert run_controller_program(5, first) == run_controller_program(5, second)
    assert first.steps == second.steps
    assert len(first.steps) > STEPS_KEPT


def test_a_run_that_forgets_a_member_of_a_set_is_found(monkeypatch: pytest.MonkeyPatch):
    def forgetful(marks: Any, parts: Any) -> PlannedRun:
        planned = plan_run(marks, parts)
        is_whole = len(planned.transactions) > 1 and planned.sets and planned.sets[-1].rest is None
        return replace(planned, transactions=planned.transactions[:-1]) if is_whole else planned

    monkeypatch.setattr(transaction_commits, "plan_run", forgetful)
    with pytest.raises(WrongStateError, match="of a decided set is"):
        run_controller_program(SEED_OF_FORGOTTEN_MEMBER, Trace())


@pytest.mark.usefixtures("threads_end")
def test_a_commit_that_ignores_the_epoch_is_found(monkeypatch: pytest.MonkeyPatch):
    for module in (commit_sets, set_service):
        monkeypatch.setattr(module, "is_committed", lambda _writer, _epoch: False)
    with pytest.raises(WrongStateError, match=r"Decision.* follows Decision"):
        run_controller_program(SEED_OF_IGNORED_EPOCH, Trace())


def test_an_abort_that_leaves_a_segment_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TransactionAborts, "delete_segments", lambda _aborts, _stream, _transaction: None)
    with pytest.raises(WrongStateError, match="segments of transactions that have ended"):
        run_controller_program(SEED_OF_LEFT_SEGMENT, Trace())


def test_a_subscription_that_is_left_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delete_reader_group, "unsubscribe", lambda _tools, _stored, _names: None)
    with pytest.raises(WrongStateError, match="has the subscribers"):
        run_controller_program(SEED_OF_LEFT_SUBSCRIPTION, Trace())


def test_retention_that_ignores_subscribers_is_found(monkeypatch: pytest.MonkeyPatch):
    ignorant = type("Ignorant", (SubscriberRecords,), {"all": lambda _records, _stream: []})
    monkeypatch.setattr(retention_plans, "SubscriberRecords", ignorant)
    with pytest.raises(WrongStateError, match="retention truncates"):
        run_controller_program(SEED_OF_UNREAD_EVENTS, Trace())


def test_a_late_creation_that_deletes_events_is_found(monkeypatch: pytest.MonkeyPatch):
    """The transaction was a member of a set that was refused meanwhile."""
    for share in ("_STORM_SHARE", "_SHARED_SHARE"):  # only storms on a transaction, since few of them find it
        monkeypatch.setattr(controller_programs, share, 1.0)
    run_controller_program(SEED_OF_RELEASED_MEMBER, Trace())
    monkeypatch.setattr(TransactionService, "_settle_set", settle_unless_confirming)
    with pytest.raises(WrongStateError, match="of a decided set is ABORTED"):
        run_controller_program(SEED_OF_RELEASED_MEMBER, Trace())


settle_set = TransactionService._settle_set


def settle_unless_confirming(service: TransactionService, scope: str, stream: str, stored: Any) -> None:
    caller = inspect.currentframe()
    assert caller is not None
    assert caller.f_back is not None
    if caller.f_back.f_code.co_name != "confirm":
        settle_set(service, scope, stream, stored)


def test_a_run_that_does_not_see_a_noted_loss_is_found(monkeypatch: pytest.MonkeyPatch):
    replace_stream = StreamRecords.replace

    def note_only(records: StreamRecords, stored: StoredStream, after: Stream, *writes: Any) -> StoredStream:
        if after != stored.stream:
            return replace_stream(records, stored, after, *writes)
        records.while_unchanged(stored, *writes)
        return stored

    monkeypatch.setattr(StreamRecords, "replace", note_only)
    with pytest.raises(WrongStateError, match="of a decided set is ABORTED"):
        run_controller_program(SEED_OF_UNSEEN_LOSS, Trace())


def test_a_beginning_that_deletes_what_others_commit_is_found(monkeypatch: pytest.MonkeyPatch):
    state_before = TransactionRecords.state_before_completion

    def open_or_none(records: TransactionRecords, scope: str, stream: str, transaction: int) -> TransactionState | None:
        found = state_before(records, scope, stream, transaction)
        return found if found is TransactionState.OPEN else None

    monkeypatch.setattr(TransactionRecords, "state_before_completion", open_or_none)
    with pytest.raises(WrongStateError, match="whose commit was accepted, is ABORTED"):
        run_controller_program(SEED_OF_COMMIT_BY_ANOTHER, Trace())


def test_aborts_that_begin_again_each_time_are_found(monkeypatch: pytest.MonkeyPatch):
    def abort_all(commits: Any, stored: StoredStream, run: CommitRun) -> None:
        for transaction in run.incomplete:
            commits._abort(stored, transaction, "bytes of it or of its commit set are lost")
            names = commits._all_segments(stored.stream, run.reference_epoch, transaction)
            commits._tools.segment_stores.delete_segments(names)
            require_time_for_piece("commits")

    monkeypatch.setattr(TransactionCommits, "_abort_known", abort_all)
    with pytest.raises(WrongStateError, match="100 invocations have not processed"):
        run_controller_program(SEED_OF_ENDLESS_ABORTS, Trace())


def test_a_merge_with_a_warm_neighbour_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(AutoScalingService, "_cold", lambda _service, _stream, identifiers: set(identifiers))
    with pytest.raises(WrongStateError, match="and not all are cold"):
        run_controller_program(SEED_OF_WARM_NEIGHBOUR, Trace())


def test_a_split_after_an_old_report_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(auto_scaling, "is_too_old", lambda _report, _now_ms: False)
    with pytest.raises(WrongStateError, match=r"kind='hot'.* seals"):
        run_controller_program(SEED_OF_OLD_REPORT, Trace())


def test_a_merge_in_a_seal_taken_for_a_loss_is_found(monkeypatch: pytest.MonkeyPatch):
    replace_stream = StreamRecords.replace

    def ignore_runs(records: StreamRecords, stored: StoredStream, after: Stream, *writes: Any) -> StoredStream:
        no_run = Check(commit_run_key(after.scope, after.name), None)
        return replace_stream(records, stored, after, *(write for write in writes if write != no_run))

    monkeypatch.setattr(StreamRecords, "replace", ignore_runs)
    with pytest.raises(WrongStateError, match="of a decided set is ABORTED"):
        run_controller_program(SEED_OF_MERGE_TAKEN_FOR_LOSS, Trace())


def test_segments_made_after_an_abort_are_found(monkeypatch: pytest.MonkeyPatch):
    def create(service: TransactionService, stream: Stream, _transaction: Any, segments: Any) -> None:
        service._segments.create(stream, segments)

    monkeypatch.setattr(TransactionService, "_create_all_segments", create)
    with pytest.raises(WrongStateError, match="segments of transactions that have ended"):
        run_controller_program(SEED_OF_LATE_SEGMENT, Trace())


def test_retention_that_leaves_old_events_is_found(monkeypatch: pytest.MonkeyPatch):
    decide = retention_plans.decide

    def decide_late(policy: Any, cuts: Any, now_ms: int, *others: Any) -> Any:
        return decide(policy, cuts, now_ms - 1_000_000, *others)

    monkeypatch.setattr(retention_plans, "decide", decide_late)
    with pytest.raises(WrongStateError, match="retention has left"):
        run_controller_program(SEED_OF_OLD_EVENTS, Trace())


def test_retention_that_cuts_young_events_is_found(monkeypatch: pytest.MonkeyPatch):
    """Its clock is ahead by less than the minimum."""
    decide = retention_plans.decide

    def decide_early(policy: Any, cuts: Any, now_ms: int, *others: Any) -> Any:
        return decide(policy, cuts, now_ms + 50_000, *others)

    monkeypatch.setattr(retention_plans, "decide", decide_early)
    with pytest.raises(WrongStateError, match="are less than the minimum"):
        run_controller_program(SEED_OF_YOUNG_EVENTS, Trace())


def run_processes(*works: Callable[[Calls], object], deaths: float = 0, check: Any = None) -> int:
    calls = Calls()
    turns = Turns(calls, ManualClock(), Random(1), Faults(deaths=deaths), Trace(), check or (lambda _kind: None))
    return turns.run([Process(f"process {number}", partial(work, calls)) for number, work in enumerate(works)])


def call_a_hundred_times(calls: Calls) -> None:
    for _ in range(100):
        calls("write", lambda: None)


@pytest.mark.usefixtures("threads_end")
def test_processes_that_do_not_end_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process_turns, "CALLS_MAX", 500)

    def call_forever(calls: Calls) -> None:
        while True:
            with contextlib.suppress(Exception):
                calls("read", lambda: None)

    with pytest.raises(WrongStateError, match="after 500 calls"):
        run_processes(call_forever, call_a_hundred_times)


@pytest.mark.usefixtures("threads_end")
def test_a_failed_process_ends_the_others():
    def fail(calls: Calls) -> None:
        calls("read", lambda: None)
        raise ValueError("this process fails")

    with pytest.raises(ValueError, match="this process fails"):
        run_processes(call_a_hundred_times, fail, call_a_hundred_times)


@pytest.mark.usefixtures("threads_end")
def test_a_failed_check_is_raised_even_if_it_is_suppressed():
    def check(_kind: str) -> None:
        raise WrongStateError("the check fails")

    def suppress(calls: Calls) -> None:
        with contextlib.suppress(WrongStateError):
            calls("write", lambda: None)

    with pytest.raises(WrongStateError, match="the check fails"):
        run_processes(suppress, check=check)


@pytest.mark.usefixtures("threads_end")
def test_deaths_and_ends_are_counted():
    assert run_processes(call_a_hundred_times, call_a_hundred_times) == 0
    assert run_processes(call_a_hundred_times, call_a_hundred_times, deaths=10) == 2


def test_only_one_process_runs_at_a_time():
    order: list[tuple[str, int]] = []

    def work(name: str, calls: Calls) -> None:
        for step in range(50):
            order.append((name, step))
            calls("read", partial(order.append, (name, step)))

    run_processes(partial(work, "first"), partial(work, "second"))
    assert {name for name, _ in order} == {"first", "second"}
    assert [turn for turn in order if turn[0] == "first"] == [("first", step) for step in range(50) for _ in range(2)]

"""Random programs on the controller: clients, processors and ticks interleave call by call, with faults.

A program has some mixes of processes one after the other. In a storm, several processors have the same messages while
commits wait in a stream that is sealed or scaled, or several clients share a transaction. Then everything settles
without faults, and `controller_checks` says what must hold. At last the streams must still work, and be deleted without
a trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Final
from unittest import mock

from fuzz.checker import WrongStateError
from fuzz.controller_ages import Ages
from fuzz.controller_changes import StreamChanges
from fuzz.controller_checks import ControllerChecks, require
from fuzz.controller_clients import Clients, Followers, Successors
from fuzz.controller_epoch_checks import EpochChecks
from fuzz.controller_groups import GROUPS, TABLES, GroupChecks, Readers
from fuzz.controller_losses import CHECK, Losses
from fuzz.controller_messages import Messages
from fuzz.controller_model import LONG_MS, SCOPE, STREAMS, WRITERS
from fuzz.controller_run import ControllerRun
from fuzz.controller_scaling import AutoScaling
from fuzz.controller_storms import SealStorms, Storms
from fuzz.process_turns import CALLS_MAX, Faults, Process, Turns
from fuzz.program_trace import Trace
from fuzz.randomness import Random
from headrace.controller.steps import transaction_aborts, transaction_commits
from headrace.model import commit_sets
from headrace.model.errors import NotFoundError
from headrace.model.stream_state import StreamState
from headrace.model.transactions import TransactionState

_FAULTS: Final = (
    Faults(),
    Faults(deaths=0.3),
    Faults(lost_answers=2),
    Faults(deaths=0.2, lost_answers=1, refusals=1),
    Faults(sleeps=1),
    Faults(sleeps=2, deaths=0.2),
    Faults(sleeps=1, jumps=0.5),
    Faults(sleeps=1, jumps=1, deaths=0.2, lost_answers=1, refusals=1),
)
_STORM_SHARE: Final = 0.5
_SHARED_SHARE: Final = 0.5
_SEAL_STORMS_SHARE: Final = 0.8

_FORGOTTEN_MS: Final = 7 * 3600 * 1000
_LAST_WRITER: Final = "last"


def run_controller_program(seed: int, trace: Trace) -> Counter[str]:
    """Run the program of a seed. Counts what happened.

    Raises:
        WrongStateError: a record, a segment or an answer is not as it must be, or the processes do not end.
        CorruptError: records contradict each other.
    """
    random = Random(seed)
    with _small_batches(random):
        program = _ControllerProgram(seed, random, trace)
        program.run()
    return program.happened


@contextmanager
def _small_batches(random: Random) -> Iterator[None]:
    """Most seeds have such small batches that a few transactions need several runs, reads and writes."""
    if random.random() < 0.1:
        yield
        return
    sizes = (
        (commit_sets, "MEMBERS_PER_WRITE", 1),
        (commit_sets, "TRANSACTIONS_PER_RUN_MAX", 2),
        (commit_sets, "SETS_PER_RUN_MAX", 2),
        (transaction_commits, "TRANSACTIONS_PER_RUN_MAX", 2),
        (transaction_commits, "SETS_PER_RUN_MAX", 2),
        (transaction_commits, "COMPLETION_WRITES_MAX", 5),
        (transaction_commits, "LAST_WRITES_MAX", 8),
        (transaction_aborts, "_RECORDS_PER_PAGE", 3),
        (transaction_aborts, "_TRANSACTIONS_PER_READ", 2),
    )
    with ExitStack() as patches:
        for module, name, value in sizes:
            patches.enter_context(mock.patch.object(module, name, value))
        yield


class _ControllerProgram:
    def __init__(self, seed: int, random: Random, trace: Trace) -> None:
        self._run = ControllerRun(seed, random, trace)
        self._random = random
        self._trace = trace
        self._plane = self._run.plane
        self._clients = Clients(self._run)
        self._messages = Messages(self._run)
        self._losses = Losses(self._run)
        self._storms = Storms(self._run, self._clients, self._messages, self._losses)
        self._seal_storms = SealStorms(self._run, self._clients, self._messages)
        self._successors = Successors(self._run, self._clients)
        self._changes = StreamChanges(self._run, self._messages)
        self._scaling = AutoScaling(self._run)
        self._ages = Ages(self._run, self._clients, self._messages)
        self._readers = Readers(self._run)
        self._followers = Followers(self._run)
        self._checks = ControllerChecks(self._run)
        self._group_checks = GroupChecks(self._run)
        self._epoch_checks = EpochChecks(self._run)
        self._faults = random.choice(_FAULTS)
        self._undisturbed_calls = 0

    @property
    def happened(self) -> Counter[str]:
        return self._run.happened

    def run(self) -> None:
        self._trace.note(f"{self._faults}")
        if self._run.has_readers:
            with self._undisturbed():
                self._readers.begin()
        for _ in range(self._random.randint(1, 3)):
            processes = self._storm() if self._random.random() < _STORM_SHARE else self._mix()
            self._run.happened["death"] += self._run_together(processes)
        with self._undisturbed():
            self._messages.settle()
        self._check_all()
        with self._undisturbed():
            self._end()

    def _check_all(self) -> None:
        self._checks.check_all()
        self._group_checks.check_all()
        self._epoch_checks.check_all()

    def _run_together(self, processes: list[Process]) -> int:
        plane, follow = self._plane, self._follow_disturbed
        return Turns(plane.calls, plane.clock, self._random, self._faults, self._trace, follow).run(processes)

    def _follow_disturbed(self, kind: str) -> None:
        self._run.follow(kind)
        if kind == CHECK:
            self._losses.follow_check()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Let the calls in this context pass without faults. The model follows them."""
        calls = self._plane.calls
        calls.after = self._follow_undisturbed
        try:
            yield
        finally:
            calls.calm()

    def _follow_undisturbed(self, kind: str) -> None:
        self._run.follow(kind)
        self._undisturbed_calls += 1
        if self._undisturbed_calls > CALLS_MAX:
            raise WrongStateError(f"after {CALLS_MAX} calls without faults there is still something to do")

    # Processes

    def _mix(self) -> list[Process]:
        """Clients, processors, ticks and faults in random numbers."""
        random, clients = self._random, self._clients
        found: list[Process] = []
        for _ in range(random.randint(1, 3)):
            writer, home = random.choice((WRITERS[0], *WRITERS)), random.choice(self._run.model.homes)
            first = random.choice((0, 0, 1, 2))
            epochs = range(first, first + random.randint(1, 3))
            work = partial(clients.write_sets, writer, home, epochs, asks=random.random() < 0.6)
            found.append(Process(f"{writer} at {home}", work))
        found += [Process("writer", clients.write_transactions) for _ in range(random.randint(0, 3))]
        found += [Process("successor", self._successors.continue_listed) for _ in range(random.randint(0, 2))]
        found += [Process("interference", clients.interfere) for _ in range(random.randint(0, 1))]
        for _ in range(random.randint(0, 2)):
            work = partial(self._changes.administer, ends=random.random() < 0.3)
            found.append(Process("administrator", work))
        found += [Process("volumes", self._losses.lose_volumes)] * (random.random() < 0.25)
        found += [Process("scope", self._changes.delete_scope)] * (random.random() < 0.03)
        found += [Process("incarnations", self._changes.recreate)] * (random.random() < 0.15)
        found += [Process("operator", self._changes.replay_letters)] * (random.random() < 0.2)
        found += [Process("follower", self._followers.follow) for _ in range(random.randint(0, 2))]
        if self._run.has_reports:
            found += [Process("reports", self._scaling.report) for _ in range(random.randint(1, 3))]
        if self._run.retains_by_time:
            found += [Process("age", self._ages.pass_time) for _ in range(random.randint(1, 2))]
        if self._run.has_readers:
            readers = self._readers
            works = (readers.manage_groups, readers.read, readers.note_positions, readers.manage_tables)
            found += [Process("reader", work) for work in random.choices(works, (3, 2, 1, 1), k=random.randint(2, 5))]
        found += [Process("processor", self._messages.consume) for _ in range(random.randint(1, 4))]
        found += [Process("tick", self._messages.tick) for _ in range(random.randint(0, 2))]
        random.shuffle(found)
        return found

    def _storm(self) -> list[Process]:
        if self._run.has_seal_storms and self._random.random() < _SEAL_STORMS_SHARE:
            with self._undisturbed():
                self._seal_storms.prepare()
            return self._seal_storms.processes()
        is_shared = self._random.random() < _SHARED_SHARE
        with self._undisturbed():
            (self._storms.prepare_shared if is_shared else self._storms.prepare_commits)()
        return self._storms.shared() if is_shared else self._storms.commits()

    # The end

    def _end(self) -> None:
        """All leases end, and all is forgotten. Then the streams still work, and are deleted."""
        for home, writer in self._run.model.writers():
            if self._run.exists(home):
                self._plane.commit_sets.committed_epoch(SCOPE, home, writer)
        self._checks.check_no_pending_set()
        self._messages.settle()
        self._check_all()
        self._plane.clock.advance(LONG_MS + 60_000)
        self._messages.settle()
        self._checks.check_all_ended()
        self._checks.check_segments(orphans=True)
        self._messages.settle(4, _FORGOTTEN_MS)
        self._checks.check_forgotten()
        self._delete_everything()
        self._plane.clock.advance(LONG_MS + 120_000)
        self._messages.settle(3, LONG_MS)
        self._checks.check_deleted()

    def _delete_everything(self) -> None:
        plane = self._plane
        for stream in STREAMS:
            if self._run.exists(stream):
                self._use(stream)
        if self._random.random() < 0.3:
            with suppress(NotFoundError):
                plane.scope_deletions.delete_scope_recursively(SCOPE)
            plane.drain()
            return
        for name in GROUPS:
            group = self._group_checks.group(name)
            if group is not None:
                plane.reader_groups.delete_reader_group(SCOPE, name, group.group_id)
        for table in TABLES:
            with suppress(NotFoundError):
                plane.tables.delete_table(SCOPE, table)
        for stream in STREAMS:
            if self._run.exists(stream):
                plane.streams.delete_stream(SCOPE, stream)
        plane.drain()

    def _use(self, stream: str) -> None:
        plane = self._plane
        stored = plane.records.get(SCOPE, stream)
        if stored.stream.state is StreamState.ACTIVE:
            service = plane.another_transaction_service()
            first = service.create_transaction(SCOPE, stream, 60_000).transaction_id
            segment = stored.stream.epoch.segments[0]
            plane.streams.scale_stream(SCOPE, stream, [segment.segment_id], [segment.key_range])
            plane.drain()
            second = service.create_transaction(SCOPE, stream, 60_000).transaction_id
            service.sets.commit_all(SCOPE, stream, {stream: [first, second]}, writer=_LAST_WRITER, epoch=1)
            plane.drain_transactions()
            self._scaling.use(stream)
            for each in (first, second):
                state = self._run.model.state((stream, each))
                require(state is TransactionState.COMMITTED, f"the last transaction {each:x} of {stream} is {state}")
            plane.streams.seal_stream(SCOPE, stream)
            plane.drain()

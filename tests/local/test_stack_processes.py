"""The watch over segment store processes, with small programs in place of segment stores."""

from __future__ import annotations

import os
import queue
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import topology
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.system_clock import SystemClock
from headrace.local import stack_processes
from headrace.local.failures import LocalStackError
from headrace.local.stack_processes import SegmentStoreProcess, SegmentStoreProcesses
from headrace.ports.clock import Clock

ROOT = Path(__file__).resolve().parents[2]

SERVES = """
import os, signal, sys, threading
stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopped.set())
port = os.environ["HEADRACE_LISTEN_PORT"]
print(f"ready store={os.environ['HEADRACE_STORE_ID']} host=127.0.0.1 port={'7777' if port == '0' else port}"
      f" containers={os.environ['HEADRACE_STORE_INDEX']},4", flush=True)
stopped.wait()
"""
DIES = "import sys\nprint('no disk', file=sys.stderr)\nsys.exit(5)\n"
SERVES_ONCE = (
    """
import os, pathlib
been = pathlib.Path(os.environ["HEADRACE_DATA_DIR"]) / "been"
if been.exists():
    raise SystemExit("journal is damaged")
been.touch()
"""
    + SERVES
)
SAYS_NONSENSE = "print('ready to rumble', flush=True)\nimport time\ntime.sleep(600)\n"


FAILS_LATER = SERVES.replace(
    "stopped.wait()",
    """
print("t level=CRITICAL store=s logger=l event=journal_failed error=OSError(27, 'File too large')", file=sys.stderr)
print("t level=CRITICAL store=s logger=l event=failed exit_code=4", file=sys.stderr)
sys.exit(4)
""",
)


class Stores:
    """Makes stores and collects what they tell."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changes: queue.Queue[None] = queue.Queue()
        self.failures: queue.Queue[str] = queue.Queue()
        self._tmp_path = tmp_path
        self._monkeypatch = monkeypatch
        self._made: list[SegmentStoreProcess] = []

    def make(
        self, program: str, *, restart: bool = True, index: int = 0, count: int = 1, clock: Clock | None = None
    ) -> SegmentStoreProcess:
        (self._tmp_path / "made_up_store.py").write_text(program)
        service = topology.SegmentStoreService(module="made_up_store")
        self._monkeypatch.setattr(topology, "SEGMENT_STORES", service)
        store = SegmentStoreProcess(
            index,
            count,
            self._tmp_path / "data",
            dict(os.environ) | {"PYTHONPATH": f"{self._tmp_path}{os.pathsep}{ROOT}"},
            clock or SystemClock(),
            restart=restart,
            on_change=lambda: self.changes.put(None),
            on_failure=self.failures.put,
        )
        self._made.append(store)
        return store

    def stop(self) -> None:
        for store in self._made:
            store.stop()


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stores]:
    made = Stores(tmp_path, monkeypatch)
    yield made
    made.stop()


def start(store: SegmentStoreProcess) -> SegmentStoreProcesses:
    started = SegmentStoreProcesses([store])
    started.start()
    return started


def test_a_store_says_what_it_serves(stores: Stores):
    store = stores.make(SERVES)
    started = start(store)
    status = store.status
    assert (status.store_id, status.host, status.port, status.containers) == ("store-0", "127.0.0.1", 7777, (0, 4))
    assert status.pid is not None
    assert started.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(status.pid, 0)


def test_a_killed_store_is_started_again_on_its_port(stores: Stores):
    store = stores.make(SERVES)
    start(store)
    first = store.status.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    stores.changes.get(timeout=60)
    stores.changes.get(timeout=60)
    assert store.status.pid not in (first, None)
    assert (store.status.port, store.status.restarts) == (7777, 1)


def test_the_end_of_a_store_names_its_first_critical_line(stores: Stores, capsys: pytest.CaptureFixture[str]):
    store = stores.make(FAILS_LATER, restart=False)
    log = store.status.data_dir.parent / "logs/store-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("t level=CRITICAL store=s logger=l event=failed exit_code=9\n")  # of a process before it
    start(store)
    store._watcher.join(60)
    text = capsys.readouterr()
    assert (
        "store-0 ended with code 4 (event=journal_failed error=OSError(27, 'File too large')): it stays"
        in text.out + text.err
    )


def test_a_store_without_its_log_is_started_again(stores: Stores):
    store = stores.make(SERVES)
    start(store)
    shutil.rmtree(store.status.data_dir.parent / "logs")
    assert store.status.pid is not None
    os.kill(store.status.pid, signal.SIGKILL)
    stores.changes.get(timeout=60)
    stores.changes.get(timeout=60)
    assert store.status.restarts == 1


def test_without_restart_a_killed_store_stays_dead(stores: Stores):
    store = stores.make(SERVES, restart=False)
    start(store)
    assert store.status.pid is not None
    os.kill(store.status.pid, signal.SIGKILL)
    stores.changes.get(timeout=60)
    store._watcher.join(60)
    assert store.status.pid is None
    assert stores.failures.empty()


def test_a_store_that_dies_at_the_start_is_one_clear_error(stores: Stores):
    with pytest.raises(LocalStackError, match=r"segment store store-0 ended with code 5; its log .* ends: no disk"):
        start(stores.make(DIES))


def test_a_store_that_says_nonsense_is_refused(stores: Stores):
    with pytest.raises(LocalStackError, match="ready to rumble"):
        start(stores.make(SAYS_NONSENSE))


def test_a_store_that_does_not_come_up_again_fails_the_stack(stores: Stores, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stack_processes, "STARTS_MAX", 3)
    monkeypatch.setattr(stack_processes, "BACKOFF_FIRST_S", 0.001)
    store = stores.make(SERVES_ONCE)
    start(store)
    assert store.status.pid is not None
    os.kill(store.status.pid, signal.SIGKILL)
    assert "store-0 does not come up again" in stores.failures.get(timeout=60)


FAILS_AFTER_ITS_START = FAILS_LATER.replace("import os,", "import os, pathlib,").replace(
    "stopped = ",
    """
with pathlib.Path(os.environ["HEADRACE_DATA_DIR"], "starts").open("a") as starts:
    starts.write("x")
stopped = """,
)


def test_a_store_that_ends_after_each_start_fails_the_stack(stores: Stores):
    """It gets ready each time, so that no start fails by itself."""
    store = stores.make(FAILS_AFTER_ITS_START)
    start(store)
    reason = stores.failures.get(timeout=60)
    assert "store-0 ended with code 4 (event=journal_failed error=OSError(27, 'File too large'))" in reason
    assert f"In {stack_processes.STARTS_MAX} starts it has never served for 10 s" in reason
    assert (store.status.data_dir / "starts").read_text() == "x" * stack_processes.STARTS_MAX
    store._watcher.join(60)
    assert not store._watcher.is_alive()


def test_ten_seconds_of_serving_end_the_count_of_starts(stores: Stores, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stack_processes, "STARTS_MAX", 2)
    clock = ManualClock()
    store = stores.make(SERVES, clock=clock)
    start(store)
    for _ in range(3):
        clock.advance(int(stack_processes.STEADY_S * 1000))
        assert store.status.pid is not None
        os.kill(store.status.pid, signal.SIGKILL)
        stores.changes.get(timeout=60)
        stores.changes.get(timeout=60)
    assert stores.failures.empty()
    clock.advance(int(stack_processes.STEADY_S * 1000) - 1)
    assert store.status.pid is not None
    os.kill(store.status.pid, signal.SIGKILL)
    stores.changes.get(timeout=60)
    stores.changes.get(timeout=60)
    assert store.status.pid is not None
    os.kill(store.status.pid, signal.SIGKILL)
    assert "was ended by signal 9" in stores.failures.get(timeout=60)


def test_failed_starts_after_a_steady_one_fail_the_stack(stores: Stores, monkeypatch: pytest.MonkeyPatch):
    """None of them became ready: the time that the store served before does not count for them."""
    monkeypatch.setattr(stack_processes, "STARTS_MAX", 2)
    clock = ManualClock()
    store = stores.make(SERVES_ONCE, clock=clock)
    start(store)
    clock.advance(int(stack_processes.STEADY_S * 1000))
    assert store.status.pid is not None
    os.kill(store.status.pid, signal.SIGKILL)
    assert "store-0 does not come up again" in stores.failures.get(timeout=60)


def test_a_replaced_store_is_counted_from_its_first_start(stores: Stores, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stack_processes, "STARTS_MAX", 2)
    store = stores.make(SERVES, clock=ManualClock())
    started = start(store)
    environment = dict(os.environ) | {"PYTHONPATH": f"{store.status.data_dir.parents[1]}{os.pathsep}{ROOT}"}
    for _ in range(2):
        assert store.status.pid is not None
        os.kill(store.status.pid, signal.SIGKILL)
        stores.changes.get(timeout=60)
        stores.changes.get(timeout=60)
        started.replace(0, environment)
        stores.changes.get(timeout=60)
    assert stores.failures.empty()


def test_stopping_ends_the_wait_for_a_restart(stores: Stores, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stack_processes, "BACKOFF_FIRST_S", 3600.0)
    monkeypatch.setattr(stack_processes, "BACKOFF_MAX_S", 3600.0)
    store = stores.make(SERVES)
    started = start(store)
    assert store.status.pid is not None
    os.kill(store.status.pid, signal.SIGKILL)
    stores.changes.get(timeout=60)
    assert not started.stop()
    assert not store._watcher.is_alive()


TELLS = (
    """
import os, pathlib
pathlib.Path(os.environ["HEADRACE_DATA_DIR"], "mode").write_text(os.environ.get("MODE", ""))
"""
    + SERVES
)


def test_a_replaced_store_has_other_variables(stores: Stores):
    """It is no death: it is not counted as a restart, and afterwards the store is watched as before."""
    store = stores.make(TELLS)
    started = start(store)
    first, written = store.status.pid, store.status.data_dir / "mode"
    assert written.read_text() == ""
    environment = dict(os.environ) | {"PYTHONPATH": f"{written.parents[2]}{os.pathsep}{ROOT}", "MODE": "permissive"}
    started.replace(0, environment)
    stores.changes.get(timeout=60)
    assert written.read_text() == "permissive"
    second = store.status.pid
    assert second not in (first, None)
    assert store.status.restarts == 0
    assert second is not None
    os.kill(second, signal.SIGKILL)
    stores.changes.get(timeout=60)
    stores.changes.get(timeout=60)
    assert (store.status.restarts, written.read_text()) == (1, "permissive")
    assert started.stop()


def test_a_store_that_does_not_come_back_is_told(stores: Stores):
    store = stores.make(SERVES_ONCE)
    started = start(store)
    environment = dict(os.environ) | {"PYTHONPATH": f"{store.status.data_dir.parents[1]}{os.pathsep}{ROOT}"}
    with pytest.raises(LocalStackError, match="ended with code 1"):
        started.replace(0, environment)
    assert stores.failures.empty()

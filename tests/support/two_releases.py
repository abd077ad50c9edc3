"""Two releases side by side: an emulator of AWS, and stores, functions and clients of either release as processes.

The former release comes from its commit, with the libraries of its own lock file. Both are fetched once, below `build`.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from fuzz.other_code import FORMER_NAME, FORMER_RELEASE, environment_of, unpack
from headrace import topology
from headrace.adapters.audit_log import FILE
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.system_clock import SystemClock
from headrace.local.resources import Resources, aws_client, aws_environment, create_resources
from headrace.local.stack import FUNCTION_ENVIRONMENT
from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.replication_health import missing_copies, replication_health, serving_zones

ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPTS: Final = ROOT / "tests" / "upgrades"
STORES: Final = 3
PATIENCE_S: Final = 180.0
"""Far beyond what any step takes: it only turns a hang into a failure."""

_POLL_S: Final = 0.2
_IN_FLIGHT_S: Final = 15
_WATCHED: Final = ("-m", "headrace.local.parent_watchdog")
"""Ends with this process, however that ends. The scripts end with their standard input."""


@dataclass(frozen=True, slots=True)
class Release:
    """The code of a release, with its libraries."""

    name: str
    tree: Path


THIS: Final = Release("this", ROOT)


def reason_to_skip() -> str:
    """Why the former release cannot be had here; empty if it can."""
    command = ["git", "rev-parse", "--verify", "--quiet", f"{FORMER_RELEASE}^{{commit}}"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    missing = f"git does not have {FORMER_NAME}, the commit {FORMER_RELEASE[:8]}: fetch its history"
    return missing if asked.returncode else ""


def former_release() -> Release:
    """The code of the commit and its libraries; they are fetched if they are not there yet."""
    releases = ROOT / "build" / "releases"
    releases.mkdir(parents=True, exist_ok=True)
    tree = releases / FORMER_RELEASE[:8]
    complete = tree / ".complete"
    with (releases / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of these tests may be at it
        if not complete.exists():
            shutil.rmtree(tree, ignore_errors=True)
            tree.mkdir()
            unpack(FORMER_RELEASE, tree)
            complete.touch()
    return Release(FORMER_NAME, tree)


class Part:
    """A process of one release. It reads commands, and answers each with one line that starts with a word."""

    def __init__(self, release: Release, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=release.tree,
                env={**environment, **environment_of(release.tree)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def answer(self, word: str) -> str:
        """The rest of the next line that starts with the word. A process that ends or is silent for long fails."""
        timer = threading.Timer(PATIENCE_S, self._process.kill)
        timer.start()
        try:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                if line.split(maxsplit=1)[:1] == [word]:
                    return line.removeprefix(word).strip()
        finally:
            timer.cancel()
        raise AssertionError(f"no {word!r} came, and the process ended: {self.log.read_text()[-3000:]}")

    def ask(self, command: str) -> str:
        """Send a command, and wait for `done`."""
        self.tell(command)
        return self.answer("done")

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self._process.terminate()
        return self._wait()

    def kill(self) -> None:
        self._process.kill()
        self._wait()

    def end(self) -> int:
        """The exit code of a process that ends by itself."""
        return self._wait()

    def _wait(self) -> int:
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return code


class Deployment:
    """Three stores with three copies, the functions, and the clients of a test; each part of a release of its own."""

    def __init__(self, directory: Path, resources: Resources, parts: ExitStack) -> None:
        self.directory = directory
        self.metadata = DynamoMetadataStore(resources.table, aws_client("dynamodb", resources.endpoint))
        self._resources = resources
        self._parts = parts
        self._stores: dict[int, Part] = {}
        self._functions: Part | None = None
        self._port = _free_port()
        self._clock = SystemClock()
        self._environment = {
            **_plain_environment(),
            **resources.environment(),
            "HEADRACE_BUCKET_COUNT": "2",
            "HEADRACE_S3_CONTAINERS": "0",
            "HEADRACE_COPIES": str(STORES),
            "HEADRACE_REPLICA_SECRET": secrets.token_hex(32),
            "HEADRACE_CLUSTER_ID": secrets.token_hex(16),
            "HEADRACE_STORE_COUNT": str(STORES),
            "HEADRACE_LISTEN_HOST": "127.0.0.1",
            "HEADRACE_ZONE": "local",
            "HEADRACE_STOP_DEADLINE_S": "20",
            "HEADRACE_CONNECTIONS_PER_ADDRESS_MAX": "4096",
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start_stores(self, release: Release) -> None:
        for index in range(STORES):
            self._launch(index, release)
        for store in self._stores.values():
            store.answer("ready")

    def replace_store(self, index: int, release: Release, *, crash: bool = False) -> None:
        """Stop a store, and start it as another release with the same directory, when each log has its copies again.

        With `crash` it is killed, so that the other release recovers its journal.
        """
        self.await_copies()
        if crash:
            self._stores[index].kill()
        else:
            assert self._stores[index].terminate() == 0
        self._launch(index, release)
        self._stores[index].answer("ready")
        self.await_copies()

    def start_functions(self, release: Release) -> None:
        """Start functions, or replace those that run. The old ones end when the new ones are loaded."""
        environment = {**self._environment, **FUNCTION_ENVIRONMENT, FILE: str(self.directory / "audit.log")}
        script = [str(SCRIPTS / "release_functions.py"), json.dumps(asdict(self._resources)), str(self._port)]
        started = self._part(release, script, environment, "functions.log")
        started.answer("loaded")
        if self._functions is not None:
            assert self._functions.terminate() == 0
        self._functions = started
        assert started.ask("serve") == self.url

    def client(self, release: Release, name: str) -> Part:
        """A client that writes and reads all the time, until it is told to check."""
        started = self._part(
            release, [str(SCRIPTS / "release_client.py"), self.url, name], _plain_environment(), f"client-{name}.log"
        )
        started.answer("ready")
        return started

    def program(self, release: Release, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a program of the release to its end."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=release.tree,
            env={**self._environment, **environment_of(release.tree), "HEADRACE_URL": self.url},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def store_that_ends(self, index: int, release: Release) -> str:
        """Stop a store and start it as a release that refuses; what it said."""
        assert self._stores.pop(index).terminate() == 0
        self._launch(index, release)
        store = self._stores.pop(index)
        assert store.end() == 2
        return store.log.read_text()

    def start_store(self, index: int, release: Release) -> None:
        self._launch(index, release)
        self._stores[index].answer("ready")

    def await_copies(self) -> None:
        """Wait until each log has its copies: a deployment does not stop the next store before."""
        deadline_s = time.monotonic() + PATIENCE_S
        while missing := self._missing_copies():
            assert time.monotonic() < deadline_s, missing
            time.sleep(_POLL_S)

    def _missing_copies(self) -> Sequence[str]:
        leases = [stored.lease for stored in ClusterRecords(self.metadata).leases()]
        logs = ContainerLogRecords(self.metadata).read_many(range(topology.CONTAINER_COUNT))
        serving = {replica: replica.hex() for replica in serving_zones(leases, self._clock.now_ms())}
        kept = {container: stored.log for container, stored in logs.items()}
        return missing_copies(kept, serving, replication_health(leases).blocked, STORES)

    def _launch(self, index: int, release: Release) -> None:
        name = f"store-{index}"
        data = self.directory / name
        data.mkdir(exist_ok=True)
        environment = {
            **self._environment,
            "HEADRACE_STORE_ID": name,
            "HEADRACE_STORE_INDEX": str(index),
            "HEADRACE_DATA_DIR": str(data),
        }
        command = [*_WATCHED, topology.SEGMENT_STORES.module]
        self._stores[index] = self._part(release, command, environment, f"{name}.log")

    def _part(self, release: Release, arguments: Sequence[str], environment: Mapping[str, str], log: str) -> Part:
        part = Part(release, arguments, environment, self.directory / log)
        self._parts.callback(partial(_end, part))
        return part


@contextmanager
def deployment(directory: Path) -> Iterator[Deployment]:
    """A deployment without stores and functions yet. All of its processes end with it."""
    with ExitStack() as parts:
        environment = {**_plain_environment(), **aws_environment("")}
        emulator = Part(THIS, [*_WATCHED, "headrace.local.aws_emulator"], environment, directory / "aws.log")
        parts.callback(partial(_end, emulator))
        endpoint = emulator.answer("ready").removeprefix("endpoint=")
        resources = create_resources(endpoint)
        sqs = aws_client("sqs", endpoint)
        for queue_url in resources.queue_urls.values():
            # A poller that ends drops what it has received, and another one gets it after this time.
            sqs.set_queue_attributes(QueueUrl=queue_url, Attributes={"VisibilityTimeout": str(_IN_FLIGHT_S)})
        yield Deployment(directory, resources, parts)


def _end(part: Part) -> None:
    if part._process.poll() is None:
        part.kill()


def _plain_environment() -> dict[str, str]:
    """That of this process, without what names its environment of Python or a deployment of the user."""
    dropped = ("HEADRACE_", "PYTHON", "VIRTUAL_ENV", "AWS_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])

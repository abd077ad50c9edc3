"""A real segment store process on a real disk, against an AWS emulator with a table and a bucket of each test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import botocore.session
import pytest

from headrace.adapters.dynamodb.record_item import create_table

STOP_S = 60


class StoreProcess:
    """Starts, kills and stops one store; its data directory stays."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self.environment = environment
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._directory: Path | None = None
        self._python: Path | str = sys.executable
        self.port = 0
        self.containers: list[int] = []
        """Those that it served when it was ready."""

    def run_from(self, directory: Path, python: Path) -> None:
        """Run the code in a directory, by the Python of another environment."""
        self._directory, self._python = directory, python

    def logged(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [self._python, "-m", "segmentstore_fargate"],
                cwd=self._directory,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        said = f"ready store={self.environment['HEADRACE_STORE_ID']} host=127.0.0.1 port="
        assert ready.startswith(said), ready + self._log.read_text()
        self.port = int(ready.split("port=")[1].split()[0])
        self.containers = [int(each) for each in ready.split("containers=")[1].strip().split(",") if each]

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._reap()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._reap()

    def stop_at_once(self) -> int:
        """SIGTERM again and again, until it ends; the exit code."""
        assert self._process is not None
        while self.is_running():
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
        return self._reap()

    def huge_page_bytes(self) -> int:
        """The resident bytes for which it has asked for huge pages."""
        assert self._process is not None
        found = resident_bytes = 0
        for line in Path(f"/proc/{self._process.pid}/smaps").read_text().splitlines():
            if line.startswith("Rss:"):
                resident_bytes = int(line.split()[1]) << 10
            elif line.startswith("VmFlags:") and "hg" in line.split():
                found += resident_bytes
        return found

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _reap(self) -> int:
        assert self._process is not None
        code = self._process.wait(STOP_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


@pytest.fixture(scope="session")
def aws_emulator() -> Iterator[subprocess.Popen[str]]:
    """An AWS emulator for all tests: its start takes as long as a short test. It has said nothing yet."""
    emulator = subprocess.Popen(
        [sys.executable, "-m", "headrace.local.aws_emulator", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        yield emulator
    finally:
        emulator.kill()
        emulator.wait()
        if emulator.stdout is not None:
            emulator.stdout.close()


@pytest.fixture(scope="session")
def aws_endpoint(aws_emulator: subprocess.Popen[str]) -> str:
    assert aws_emulator.stdout is not None
    endpoint = aws_emulator.stdout.readline().strip().partition("endpoint=")[2]
    assert endpoint
    return endpoint


@pytest.fixture
def aws_environment(aws_endpoint: str) -> dict[str, str]:
    """Standard AWS variables for the emulator, and the names of a table and a bucket that are the test's own."""
    table, bucket = f"crash-{uuid.uuid4().hex}", f"crash-{uuid.uuid4().hex}"
    _create_resources(aws_endpoint, table, bucket)
    return {
        **os.environ,
        "HEADRACE_METADATA_TABLE": table,
        "HEADRACE_CHUNK_BUCKET": bucket,
        "AWS_ENDPOINT_URL": aws_endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }


def _create_resources(endpoint: str, table: str, bucket: str) -> None:
    session = botocore.session.Session()
    session.set_credentials("test", "test")
    dynamodb = session.create_client("dynamodb", endpoint_url=endpoint, region_name="us-east-1")
    create_table(table, dynamodb)
    session.create_client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=bucket)


@pytest.fixture
def make_store(aws_environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., StoreProcess]]:
    """Makes store processes on one data directory; settings are environment variables without their prefix."""
    made: list[StoreProcess] = []

    def make(**settings: object) -> StoreProcess:
        environment = {
            **aws_environment,
            "HEADRACE_STORE_ID": "store-0",
            "HEADRACE_DATA_DIR": str(tmp_path / "data"),
            "HEADRACE_CONTAINER_COUNT": "3",
            "HEADRACE_CACHE_BYTES": str(64 << 20),
            "HEADRACE_JOURNAL_FILE_BYTES": str(32 << 20),
            "HEADRACE_LOG_LEVEL": "WARNING",
            **{f"HEADRACE_{name.upper()}": str(value) for name, value in settings.items()},
        }
        made.append(StoreProcess(environment, tmp_path / "store.log"))
        return made[-1]

    yield make
    for store in made:
        if store.is_running():
            store.kill()

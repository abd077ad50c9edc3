"""What a wiretap sees of a stack: of a plain one the events and tokens, of a secure one neither."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from fuzz.processes import below, listening_ports
from headrace.client import Headrace, ReaderGroupConfiguration, ScalingPolicy, connect
from headrace.local.running import running_stack
from headrace.model.reader_groups import GroupStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCOPE, STREAM = "shop", "orders"
EVENTS: Final = 200


def why_not() -> str | None:
    """Why this machine captures nothing."""
    if shutil.which("dumpcap") is None:
        return "dumpcap is not on the PATH (Debian: apt-get install tshark)"
    listed = subprocess.run(["dumpcap", "-D"], capture_output=True, text=True, check=False)
    return None if " lo" in listed.stdout else "dumpcap may not capture on lo"


@contextmanager
def captured(ports: Sequence[int], file: Path) -> Iterator[None]:
    """Keeps what passes through these ports of loopback in a file, without loss."""
    only = " or ".join(f"tcp port {port}" for port in ports)
    command = ["dumpcap", "-i", "lo", "-B", "64", "-q", "-f", only, "-w", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("File:"):
                break
        yield
        time.sleep(1)  # what was sent is on its way to the file
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert "received/dropped" in said, said
    assert "/0 (" in said, f"packets were lost: {said}"


def use_everything(headrace: Headrace, mark: bytes) -> None:
    """Writers, a transaction, a scale, a reader and a group, with `mark` in each event."""
    headrace.admin.create_scope(SCOPE)
    headrace.admin.create_stream(SCOPE, STREAM, scaling=ScalingPolicy.fixed(1))
    with headrace.writer(SCOPE, STREAM) as writer:
        for number in range(EVENTS):
            writer.write(mark + b"%d" % number, routing_key=str(number))
    headrace.admin.scale_stream(SCOPE, STREAM, seal=[0], ranges=[(0.0, 0.5), (0.5, 1.0)])
    with headrace.transactional_writer(SCOPE, STREAM) as transactions:
        transaction = transactions.begin()
        for number in range(EVENTS):
            transaction.write(mark + b"%d" % number, routing_key=str(number))
        transaction.commit(wait=True)
    with headrace.reader(SCOPE, STREAM, end=headrace.admin.stream_cut(SCOPE, STREAM)) as reader:
        assert sum(mark in read.event for read in reader) == 2 * EVENTS
    headrace.admin.reader_groups.create(SCOPE, "billing", ReaderGroupConfiguration((GroupStream(SCOPE, STREAM),)))
    with headrace.reader_group(SCOPE, "billing") as group, group.reader("first") as member:
        assert member.read_batch(timeout_s=60) is not None


def token_header(http: str) -> bytes:
    """The first part of a delegation token, which all tokens of a key share."""
    route = f"{http}/v1/scopes/{SCOPE}/streams/{STREAM}/delegation-token"
    with urllib.request.urlopen(route) as answer:
        header = json.load(answer)["token"].partition(".")[0]
    assert len(header) > 10
    return str(header).encode("ascii")


def wiretap(directory: Path, spark: SparkSession, *, secure: bool) -> tuple[bool, bool]:
    """Whether events and tokens are seen in what passes to, from and between the stores of a stack."""
    mark, file = secrets.token_hex(8).encode("ascii"), directory / "capture.pcapng"
    with running_stack(directory, segment_stores=3, tokens=True, secure=secure) as state:
        stores: list[dict[str, Any]] = state["segmentStores"]
        processes = [store["pid"] for store in stores]
        processes += [child.pid for child in below(*processes)]
        ports = sorted({port for pid in processes for port in listening_ports(pid)})
        assert len(ports) >= 2 * len(stores)  # of clients, and of other stores
        url = state["endpoints"]["http"]
        with captured(ports, file), connect(url) as headrace:
            use_everything(headrace, mark)
            options = {"controller": url, "scope": SCOPE, "stream": STREAM}
            rows = spark.read.format("headrace").options(**options).load().collect()
            assert len(rows) == 2 * EVENTS
            header = token_header(url)
    seen = file.read_bytes()
    assert len(seen) > 3 * EVENTS * len(mark)
    return mark in seen, header in seen


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("secure", [False, True])
def test_only_a_plain_stack_can_be_overheard(session: SparkSession, tmp_path: Path, secure: bool):
    assert wiretap(tmp_path, session, secure=secure) == (not secure, not secure)

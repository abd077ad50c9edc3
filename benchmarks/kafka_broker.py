"""A single Kafka broker (KRaft) in a process of its own, for `benchmarks.peers`."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.counted_store import LOOPBACK
from headrace.adapters.tcp.listener import bind_socket

JARS: Final = Path("build/bench-peers/jars")
CLUSTER: Final = "MkU3OEVBNTcwNTJENDM2Qk"
"""Any 16 bytes as Kafka writes them."""

HEAP: Final = ("-Xms1g", "-Xmx1g")
"""As Kafka's start script sets it."""

START_S: Final = 120.0
STOP_S: Final = 60.0
POLL_S: Final = 0.1


class BrokerError(RuntimeError):
    """The broker cannot be started."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that runs. `address` is for clients."""

    address: str
    pid: int


def broker_properties(port: int, controller_port: int, logs: Path) -> str:
    """The configuration of one broker that is its own controller. What is not here has Kafka's default."""
    return "".join(
        f"{name}={value}\n"
        for name, value in {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
            "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(logs),
            # There is one broker, so there cannot be three copies.
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "auto.create.topics.enable": "false",
        }.items()
    )


def missing_tool(jars: Path = JARS) -> str | None:
    """What a broker lacks here; None if it can be started."""
    if shutil.which("java") is None:
        return "Java 17 is not installed"
    if not list(jars.glob("kafka_*.jar")):
        return f"{jars} has no Kafka: run `make bench-peers`"
    return None


@contextmanager
def running_broker(directory: Path, jars: Path = JARS) -> Iterator[Broker]:
    """A broker whose log is below `directory`, on free ports; it is stopped afterwards.

    Raises:
        BrokerError: it did not start.
    """
    port, controller_port = _free_port(), _free_port()
    properties, output = directory / "server.properties", directory / "broker.log"
    properties.write_text(broker_properties(port, controller_port, directory / "logs"))
    java = ["java", *HEAP, "-cp", f"{jars}/*"]
    formatted = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties)]
    done = subprocess.run(formatted, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokerError(f"the directory of Kafka could not be formatted: {done.stderr[-1000:]}")
    with output.open("w") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=subprocess.STDOUT)
    try:
        _await(process, port, output)
        yield Broker(f"{LOOPBACK}:{port}", process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise BrokerError(f"Kafka ended with {process.returncode}: {output.read_text()[-1000:]}")
        try:
            socket.create_connection((LOOPBACK, port), POLL_S).close()
        except OSError:
            time.sleep(POLL_S)
        else:
            return
    raise BrokerError(f"Kafka did not open its port within {START_S:.0f} s")


def _free_port() -> int:
    with bind_socket(LOOPBACK, 0) as bound:
        port: int = bound.getsockname()[1]
        return port

"""The Sparks on which a search can run a query, and a standalone cluster of one of them on this machine.

Each Spark has an environment of its own in the root of the project. A cluster is a master, and two workers that Spark
takes for two hosts: Spark runs a speculative attempt on another host than the first one, and never with a local master.
So the second worker has the address 127.0.0.2, which Linux serves without any set-up. An executor is a JVM of its own,
below its worker. It outlives its driver for a moment, as on a real cluster.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from fuzz.processes import Process, below, kill_group

ROOT: Final = Path(__file__).parent.parent
Form = Literal["sink", "foreach-batch"]

_ENVIRONMENTS: Final = {
    "3.5": ".venv-spark-3.5",
    "4.0": ".venv-spark-4.0",
    "4.1": ".venv-spark-4.1",
    "4.3": ".venv-spark-4.3",
    "none": ".venv",
}
VERSIONS: Final = tuple(_ENVIRONMENTS)
WITHOUT_SPARK: Final = "none"
"""The connector's parts below Spark alone; see `plain_query`."""
HOSTS: Final = ("127.0.0.1", "127.0.0.2")
CORES_PER_HOST: Final = 2
_READY_POLLS: Final = 600
_POLL_S: Final = 0.1
_URL: Final = re.compile(r"Starting Spark master at (spark://[\w.:]+)")
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"


class NoEngineError(Exception):
    """The environment of this Spark is not installed; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A version of Spark, and the interpreter that has it."""

    version: str
    python: Path

    @property
    def has_spark(self) -> bool:
        return self.version != WITHOUT_SPARK

    @property
    def query_module(self) -> str:
        return "fuzz.sink_query" if self.has_spark else "fuzz.plain_query"

    @property
    def forms(self) -> tuple[Form, ...]:
        """How a query can write. Spark 3.5 has no data sources in Python: it reads plans and writes in foreachBatch."""
        return ("foreach-batch",) if self.version == "3.5" else ("sink", "foreach-batch")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this process, in which the interpreter and its workers import this project."""
        own = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(self.python), "SPARK_LOCAL_IP": "127.0.0.1"}
        return {name: value for name, value in os.environ.items() if name != "SPARK_HOME"} | own

    def spark_home(self) -> Path:
        """Where pyspark has its jars and scripts."""
        command = [str(self.python), "-c", "import pyspark; print(pyspark.__path__[0])"]
        return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def find_engine(version: str, root: Path = ROOT) -> Engine:
    """The engine of a version.

    Raises:
        NoEngineError: it is not installed.
    """
    directory = root / _ENVIRONMENTS[version]
    python = directory / "bin" / "python"
    if not python.exists():
        raise NoEngineError(f"there is no Spark {version}: {python} is missing; run `make {directory.name}/.installed`")
    return Engine(version, python)


class SparkCluster:
    """The cluster's address, and the processes of its workers."""

    def __init__(self, url: str, workers: list[int]) -> None:
        self.url = url
        self._workers = workers

    def executors(self) -> list[Process]:
        """The JVMs of executors."""
        return [each for each in below(*self._workers) if _EXECUTOR in each.command]

    def processes(self) -> list[Process]:
        """All processes of executors, those of Python included."""
        return below(*self._workers)


@contextmanager
def spark_cluster(engine: Engine, directory: Path) -> Iterator[SparkCluster]:
    """Runs a cluster. Raises AssertionError if its master does not start."""
    home = engine.spark_home()
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, host: str, *arguments: str) -> Path:
        log_file = directory / f"{name.lower()}-{host}.log"
        package = f"org.apache.spark.deploy.{name.lower()}.{name}"
        command = [str(home / "bin" / "spark-class"), package, "--host", host, "--webui-port", "0", *arguments]
        own = {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": host}
        own["SPARK_LOCAL_DIRS"] = str(directory / f"local-{host}")
        with log_file.open("wb") as log:
            environment = engine.environment | own
            running.append(
                subprocess.Popen(
                    command, stdout=log, stderr=log, env=environment, start_new_session=True, cwd=directory
                )
            )
        return log_file

    try:
        url = _await_url(start("Master", HOSTS[0], "--port", "0"))
        sizes = ["--cores", str(CORES_PER_HOST), "--memory", "2g"]
        for host in HOSTS:
            start("Worker", host, *sizes, "--work-dir", str(directory / f"work-{host}"), url)
        yield SparkCluster(url, [each.pid for each in running[1:]])
    finally:
        left = below(*(each.pid for each in running))
        for each in running:
            kill_group(each.pid)
            each.wait()
        for process in left:  # Python's daemons have groups of their own
            kill_group(process.pid)


def _await_url(log_file: Path) -> str:
    for _ in range(_READY_POLLS):
        if found := _URL.search(log_file.read_text()):
            return found[1]
        threading.Event().wait(_POLL_S)
    raise AssertionError(f"the master of the Spark cluster does not start: {log_file.read_text()[-2000:]}")

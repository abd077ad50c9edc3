"""A standalone Spark cluster on this machine: a master, and two workers that Spark takes for two hosts.

Spark runs a speculative attempt on another host than the first one, and never with a local master. So the second worker
has the address 127.0.0.2, which Linux serves without any set-up. An executor is a JVM of its own, below its worker. It
outlives its driver for a moment, as on a real cluster.
"""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fuzz.processes import Process, below, kill_group
from fuzz.spark_engines import Engine

HOSTS: Final = ("127.0.0.1", "127.0.0.2")
CORES_PER_HOST: Final = 2
_READY_POLLS: Final = 600
_POLL_S: Final = 0.1
_URL: Final = re.compile(r"Starting Spark master at (spark://[\w.:]+)")
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"


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

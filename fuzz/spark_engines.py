"""The Sparks on which a search can run a query. Each has an environment of its own in the root of the project."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

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

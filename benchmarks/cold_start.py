"""`python -m benchmarks.cold_start`: the processor's instructions of a function from its start to its first answer.

A process imports the handler from the bundle that is deployed, made for this machine, and answers one request, with
DynamoDB replaced by an answer that there is nothing. An empty Python is subtracted. It needs valgrind and a Python of
Lambda's version.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import first_request
from benchmarks.instructions import instructions_in, valgrind
from benchmarks.results import Results
from headrace import topology
from infra.packaging import byte_code
from infra.packaging.lambda_bundle import PYTHON_VERSION, build_bundle, bundle_requirements

REQUESTS: Final = {
    "scopes": "/v1/scopes",
    "streams": "/v1/scopes/s/streams",
    "segments": "/v1/scopes/s/streams/t/segments",
    "transactions": "/v1/scopes/s/streams/t/transactions",
}
"""A function and the path of its first request."""

_ENVIRONMENT: Final = {
    "HEADRACE_METADATA_TABLE": "t",
    "HEADRACE_CHUNK_BUCKET": "b",
    **{f"HEADRACE_{name}_QUEUE_URL": "https://q/1" for name in ("REQUESTS", "TABLES", "COMMITS", "ABORTS", "TICKS")},
    "AWS_REGION": "eu-west-1",
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "key",
    "POWERTOOLS_METRICS_DISABLED": "true",
    "PYTHONHASHSEED": "0",
}


def first_answer(name: str, path: str, python: Sequence[str], sources: Path) -> dict[str, Any]:
    """What the first request of a function answers, in a process of its own that `python` starts.

    Raises:
        subprocess.CalledProcessError: the process failed.
    """
    module = topology.function(name).handler.rpartition(".")[0]
    environment = os.environ | _ENVIRONMENT | {"AWS_LAMBDA_FUNCTION_NAME": f"headrace-{name}"}
    environment |= {"POWERTOOLS_SERVICE_NAME": name, "PYTHONPATH": str(sources)}
    command = [*python, first_request.__file__, module, path]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_start", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the figures as JSON into this file")
    options = parser.parse_args()
    below, interpreter = valgrind(), byte_code.find_interpreter(PYTHON_VERSION)
    if not below or interpreter is None:
        print(f"nothing was counted: valgrind or Python {PYTHON_VERSION} is not installed")
        return 0
    results = Results()
    with tempfile.TemporaryDirectory() as scratch:
        report, bundle = Path(scratch) / "report", Path(scratch) / "bundle"
        bundle.mkdir()
        build_bundle(bundle, bundle_requirements(), interpreter, f"{platform.machine()}-manylinux2014")
        counted = (*below, f"--log-file={report}", str(interpreter))
        subprocess.run([*counted, "-c", "pass"], check=True)
        nothing = instructions_in(report.read_text())
        for name, path in REQUESTS.items():
            first_answer(name, path, counted, bundle)
            count = (instructions_in(report.read_text()) - nothing) / 1e6
            results.add(f"first answer of {name}", count, "M instructions")
    print(results.table())
    if options.output is not None:
        options.output.write_text(json.dumps(results.as_json(), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

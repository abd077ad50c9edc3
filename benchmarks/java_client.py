"""`python -m benchmarks.java_client`: how fast Pravega's own Java client writes to and reads from a segment store.

The program is `Speed` of `tests/conformance/java`, which Maven builds. One process does all rounds. The first one is
not counted: Java compiles what it runs meanwhile. Processor time is that of the client and of the store, for each MB.
Tier 2 is the S3 double of `make bench`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.copies import SETTINGS, warm_stacks
from benchmarks.machine import machine_facts, versions
from benchmarks.processor_time import processor_s
from benchmarks.results import Results, document
from benchmarks.settings import KIB, AppendLoad

PROJECT: Final = Path(__file__).resolve().parents[1] / "tests" / "conformance" / "java"
LOAD: Final = AppendLoad(KIB, 256 * KIB)
ROUNDS: Final = 4


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.java_client", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds to take medians of, without the first one")
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench/java-client.json"), help="file for the results"
    )
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    facts, results = machine_facts(), Results()
    with ExitStack() as parts:
        build = Path(parts.enter_context(tempfile.TemporaryDirectory(dir=options.output.parent))).resolve()
        maven = ["mvn", "-B", "-q", f"-Dconformance.build={build}", "-f", str(PROJECT / "pom.xml"), "package"]
        subprocess.run(maven, check=True)
        stacks = warm_stacks(parts, options.output.parent, {"java": {"segment_stores": 1, "grpc": True}})
        measure(results, f"{build}/classes:{build}/lib/*", stacks["java"][1], options.rounds)
    settings = asdict(SETTINGS) | asdict(LOAD) | {"rounds": options.rounds}
    written = document(results, machine=facts, versions=versions(), settings=settings)
    options.output.write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


def measure(results: Results, class_path: str, stack: Mapping[str, Any], rounds: int) -> None:
    """Run one Java process. Raises CalledProcessError if it fails."""
    command = ["java", "-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", class_path]
    command += ["headrace.conformance.Speed", stack["endpoints"]["grpc"]]
    command += [str(LOAD.event_bytes), str(LOAD.events), str(rounds + 1)]
    store = stack["segmentStores"][0]["pid"]
    megabytes = LOAD.events * LOAD.event_bytes / 1e6
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as java:
        assert java.stdout is not None
        used_s = processor_s(store)
        for number, line in enumerate(java.stdout):
            work, rate, client = line.split()
            before_s, used_s = used_s, processor_s(store)
            if number > 1:  # a round has two lines
                results.add(f"{work}, {LOAD.event_bytes} B", float(rate), "MB/s")
                results.add(f"{work}, {LOAD.event_bytes} B, processor of the client", float(client), "ms/MB")
                store_ms = (used_s - before_s) * 1e3 / megabytes
                results.add(f"{work}, {LOAD.event_bytes} B, processor of the store", store_ms, "ms/MB")
    if java.returncode:
        raise subprocess.CalledProcessError(java.returncode, command)


if __name__ == "__main__":
    raise SystemExit(main())

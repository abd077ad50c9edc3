#!/usr/bin/env python3
"""Runs the conformance checks of Pravega's own clients against the local stack with the bridge, and keeps the results.

`make conformance` calls it. `scripts/run_conformance.py [--only PART_OF_A_NAME]` runs the Maven project in
`tests/conformance/java`, the tests in `tests/conformance` for reader groups that the Java client shares with ours, and
the tests in `tests/foreign_client` for the PyPI client. The results are written to
`tests/conformance/results/CLIENT.json`, unless only a part is run. The exit code is 1 if a check fails. A client is
skipped with one line where it or a tool that it needs is not installed. With HEADRACE_TEST_STACK=secure the stack
demands TLS and tokens (`tests/support/shared_stack.py`).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from shared_stack import IS_SECURE, foreign_environment, shared_stack  # noqa: E402

SHARED_GROUPS = ROOT / "tests" / "conformance"
PROJECT = SHARED_GROUPS / "java"
RESULTS = SHARED_GROUPS / "results"
JAVA_CLIENT = "pravega-client"
PYTHON_CLIENT = "pravega"
CLIENTS = ("java", "java-and-python", "python")
JAVA_RELEASE_MIN = 17
SEGMENT_STORES = 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only checks of the Java client with TEXT in the name"
    )
    parser.add_argument("--client", choices=CLIENTS, action="append", help="only this client")
    options = parser.parse_args(arguments)
    clients = options.client or (["java"] if options.only else CLIENTS)
    failed = False
    if "java" in clients or "java-and-python" in clients:
        missing = missing_java_tool()
        if missing:
            print(f"conformance: the Java client is skipped: {missing}")
        else:
            failed |= not run_with_java(options.only, clients)
    if "python" in clients:
        try:
            version = importlib.metadata.version(PYTHON_CLIENT)
        except importlib.metadata.PackageNotFoundError:
            print(f"conformance: the PyPI client is skipped: the package {PYTHON_CLIENT} is not installed")
        else:
            failed |= not run_pytest("python", PYTHON_CLIENT, version, ROOT / "tests" / "foreign_client")
    return int(failed)


def missing_java_tool() -> str | None:
    """Why the Java client cannot run here; None if it can."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            return f"there is no {tool} on the path (Debian: apt-get install openjdk-17-jdk-headless maven)"
    shown = subprocess.run(["mvn", "--version"], capture_output=True, text=True, check=False).stdout
    release = next(
        (line.split(":")[1].split(",")[0] for line in shown.splitlines() if line.startswith("Java version")), "0"
    )
    if int(release.strip().split(".")[0]) < JAVA_RELEASE_MIN:
        return f"Maven uses Java {release.strip()}, and {JAVA_RELEASE_MIN} is the oldest that works"
    return None


def run_with_java(part: str, clients: Sequence[str]) -> bool:
    """Build the Maven project, run the checks that need it, and keep their results; whether all passed."""
    with tempfile.TemporaryDirectory(prefix="headrace-conformance-") as directory:
        work = Path(directory)
        build = work / "build"
        maven = ["mvn", "-B", "-q", f"-Dconformance.build={build}", "-f", str(PROJECT / "pom.xml"), "package"]
        built = subprocess.run(maven, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            print(f"conformance: Maven failed:\n{built.stdout[-3000:]}{built.stderr[-1000:]}", file=sys.stderr)
            return False
        class_path = f"{build / 'classes'}:{build / 'lib'}/*"
        passed = "java" not in clients or run_java(work, class_path, part)
        if "java-and-python" in clients:
            environment = {**os.environ, "HEADRACE_JAVA_CLASS_PATH": class_path}
            passed &= run_pytest("java-and-python", JAVA_CLIENT, java_client_version(), SHARED_GROUPS, environment)
        return passed


def run_java(work: Path, class_path: str, part: str) -> bool:
    """Run the checks of the Java client, and keep their results; whether all passed."""
    found = work / "checks.json"
    with (
        shared_stack(work, segment_stores=SEGMENT_STORES, grpc=True) as state,
        (work / "java.log").open("w") as log,
    ):
        command = ["java", "-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", class_path]
        command += ["headrace.conformance.Conformance", state["endpoints"]["grpc"], str(found)]
        command += [str(work / "local-stack.json"), part]
        environment = os.environ | foreign_environment(work)
        code = subprocess.run(command, stderr=log, env=environment, check=False).returncode
    if code != 0:
        print((work / "java.log").read_text()[-5000:], file=sys.stderr)
    if not found.exists():
        return False
    if not part:
        keep("java", JAVA_CLIENT, java_client_version(), json.loads(found.read_text()))
    return code == 0


def java_client_version() -> str:
    """The version of the client in the Maven project."""
    names = {"m": "http://maven.apache.org/POM/4.0.0"}
    for each in ElementTree.parse(PROJECT / "pom.xml").getroot().iterfind(".//m:dependency", names):
        if each.findtext("m:artifactId", namespaces=names) == JAVA_CLIENT:
            return each.findtext("m:version", namespaces=names) or ""
    raise ValueError(f"{PROJECT / 'pom.xml'} does not name {JAVA_CLIENT}")


def run_pytest(
    client: str, package: str, version: str, tests: Path, environment: Mapping[str, str] | None = None
) -> bool:
    """Run the tests of a client, and keep their results; whether all passed."""
    with tempfile.TemporaryDirectory(prefix="headrace-conformance-") as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", str(tests), f"--junitxml={report}"]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if not report.exists():
            return False
        keep(client, package, version, checks_of_report(report))
        return code == 0


def checks_of_report(report: Path) -> list[dict[str, Any]]:
    """The checks of a report of pytest. The module is the area, and the name of the test is the name."""
    checks = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        wrong = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        skipped = case.find("skipped") is not None
        checks.append(
            {
                "area": case.get("classname", "").rpartition("test_")[2].replace("_", " "),
                "name": case.get("name", "").removeprefix("test_").replace("_", " "),
                "outcome": "failed" if wrong is not None else "skipped" if skipped else "passed",
                "seconds": round(float(case.get("time", "0")), 1),
                "note": (wrong.get("message") or "").replace(f"{ROOT}/", "")[:300] if wrong is not None else "",
            }
        )
    return checks


def keep(client: str, package: str, version: str, checks: list[dict[str, Any]]) -> None:
    """Write the results without the durations, which differ from run to run. Those of a secure stack are not kept."""
    if IS_SECURE:
        return
    for check in checks:
        check.pop("seconds", None)
    RESULTS.mkdir(parents=True, exist_ok=True)
    document = {"client": package, "version": version, "checks": checks}
    (RESULTS / f"{client}.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())

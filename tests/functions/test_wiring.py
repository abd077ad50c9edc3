"""Services are built once, when first asked for, and from no more than they need."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from functions import wiring
from headrace.topology import FUNCTIONS

ROOT = Path(__file__).resolve().parents[2]


def test_a_service_is_built_once_for_all_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_METADATA_TABLE", "t")
    wiring.forget_services()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(wiring.scope_service())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(service) for service in found}) == 1
    wiring.forget_services()
    assert wiring.scope_service() is not found[0]
    wiring.forget_services()


def test_importing_the_functions_loads_no_sdk():
    """Clients are made when they are needed: importing an SDK is the largest part of a cold start."""
    modules = ", ".join(declared.handler.rpartition(".")[0] for declared in FUNCTIONS)
    program = (
        f"import sys, {modules}\n"
        "print(sorted({'boto3', 'botocore.session', 'pynamodb', 'moto', 'pyspark', 'aws_xray_sdk'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr.strip()) == ("[]", "")

"""Readers of the Java client and of ours, against the whole local stack. Collects nothing without the Java client.

`scripts/run_conformance.py` builds the Java client's part and names its class path in `HEADRACE_JAVA_CLASS_PATH`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mixed_group import MixedGroup
from readers_of_both_clients import JavaReaders, ReadLog
from shared_stack import foreign_environment, shared_stack

from headrace.client import Headrace, connect

CLASS_PATH = os.environ.get("HEADRACE_JAVA_CLASS_PATH", "")

collect_ignore_glob = [] if CLASS_PATH else ["test_*.py"]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the state file of a running stack with two segment stores says."""
    directory = tmp_path_factory.mktemp("stack")
    with shared_stack(directory, segment_stores=2, grpc=True) as state:
        yield state | {"foreign": foreign_environment(directory)}


@pytest.fixture(scope="session")
def ours(stack: dict[str, Any]) -> Iterator[Headrace]:
    with connect(stack["endpoints"]["http"]) as headrace:
        yield headrace


@pytest.fixture
def mixed(
    stack: dict[str, Any], ours: Headrace, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[MixedGroup]:
    scope = f"mixed-{secrets.token_hex(6)}"
    ours.admin.create_scope(scope)
    log = ReadLog()
    java = JavaReaders(CLASS_PATH, stack["endpoints"]["grpc"], scope, log, tmp_path / "java.log", stack["foreign"])
    found = MixedGroup(ours, stack["endpoints"]["http"], scope, java, log)
    try:
        yield found
    finally:
        found.close()

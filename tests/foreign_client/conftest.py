"""Pravega's own client, unmodified, against the whole local stack. Collects nothing where the client does not exist."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import foreign_client
import pytest
from shared_stack import foreign_environment, shared_stack

from headrace.client import Headrace, connect

collect_ignore_glob = [] if importlib.util.find_spec("pravega_client") else ["test_*.py"]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the state file of a running stack with two segment stores says. It has containers whose logs are in S3."""
    directory = tmp_path_factory.mktemp("stack")
    with shared_stack(directory, segment_stores=2, grpc=True, s3_containers=2) as state:
        yield state | {"foreign": foreign_environment(directory)}


@pytest.fixture(scope="session")
def ours(stack: dict[str, Any]) -> Iterator[Headrace]:
    """Our own client of the same stack; the scope `s` is there."""
    with connect(stack["endpoints"]["http"]) as headrace:
        headrace.admin.create_scope("s")
        yield headrace


@pytest.fixture
def start(stack: dict[str, Any], ours: Headrace) -> Iterator[Callable[..., foreign_client.Child]]:
    """Starts a function of `foreign_client` in a child process."""
    children: list[foreign_client.Child] = []

    def start(function: Callable[..., Any], *arguments: Any) -> foreign_client.Child:
        uri, environment = stack["endpoints"]["grpc"], stack["foreign"]
        children.append(foreign_client.Child(uri, function, *arguments, environment=environment))
        return children[-1]

    yield start
    for child in children:
        child.end()


@pytest.fixture
def foreign(start: Callable[..., foreign_client.Child]) -> Callable[..., Any]:
    """Calls a function of `foreign_client` in a child process; what it returns."""
    return lambda function, *arguments: start(function, *arguments).hear()

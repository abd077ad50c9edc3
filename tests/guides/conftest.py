"""One local stack for all guides, and a scope for each."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guide_runner import GuideRunner, clients_of
from shared_stack import shared_stack

from headrace.client import Headrace, connect


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The state of a stack that also has containers for streams that S3 acknowledges."""
    with shared_stack(tmp_path_factory.mktemp("guides"), segment_stores=1, s3_containers=1) as state:
        yield state


@pytest.fixture(scope="session")
def client(stack: dict[str, Any]) -> Iterator[Headrace]:
    with connect(stack["endpoints"]["http"]) as opened:
        yield opened


@pytest.fixture
def scope() -> str:
    """A name that no other test uses. The scope does not exist yet."""
    return f"shop-{secrets.token_hex(4)}"


@pytest.fixture
def guide(stack: dict[str, Any], scope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GuideRunner]:
    """Other services of AWS that a guide uses are those of the stack's emulator."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", stack["endpoints"]["aws"])
    url = stack["endpoints"]["http"]
    with clients_of(url):
        yield GuideRunner(url, scope, tmp_path)

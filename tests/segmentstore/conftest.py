"""The worlds in which segment stores run, and the fakes of a store's process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from store_process import Aws
from store_world import WAIT_S, World

from segmentstore_fargate import heartbeat as heartbeat_module
from segmentstore_fargate import wiring
from segmentstore_fargate.config import StoreConfig, read_config

Result = TypeVar("Result")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def make_world() -> Callable[..., World]:
    return World


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Result]], Result]:
    """Runs a coroutine to its end, for a test that is not an async function itself."""

    def runner(work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run(asyncio.wait_for(work, 4 * WAIT_S))

    return runner


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Aws:
    made = Aws()
    monkeypatch.setattr(wiring, "DynamoMetadataStore", made)
    monkeypatch.setattr(wiring, "S3ChunkStorage", lambda *_: made.objects)
    monkeypatch.setattr(wiring, "s3_client", lambda _session: None)
    monkeypatch.setattr(heartbeat_module, "START_RETRY_S", 0.001)
    return made


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    return read_config(
        {
            "HEADRACE_STORE_ID": "store-0",
            "HEADRACE_DATA_DIR": str(tmp_path),
            "HEADRACE_METADATA_TABLE": "table",
            "HEADRACE_CHUNK_BUCKET": "bucket",
            "HEADRACE_CONTAINER_COUNT": "2",
            "HEADRACE_HEALTH_PORT": "0",
            "HEADRACE_JOURNAL_FILE_BYTES": str(32 << 20),
            "HEADRACE_CACHE_BYTES": str(64 << 20),
        }
    )

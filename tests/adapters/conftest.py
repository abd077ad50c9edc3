"""The ports on every adapter: in memory, and on moto in a process of its own, over real HTTP."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from emulated_aws import emulated_aws

from headrace.adapters.dynamodb.client import dynamodb_client
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.dynamodb.record_item import create_table
from headrace.adapters.memory.chunk_storage import MemoryChunkLinks, MemoryChunkStorage
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.adapters.s3.chunk_links import S3ChunkLinks
from headrace.adapters.s3.chunk_storage import S3ChunkStorage
from headrace.adapters.s3.client import s3_client
from headrace.adapters.system_clock import SystemClock
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.metadata_store import MetadataStore

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_s3 import S3Client


@pytest.fixture(scope="session")
def aws_endpoint() -> Iterator[str]:
    """The address of an AWS emulator on loopback; it ends with the tests."""
    with emulated_aws() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def _endpoint_variable(aws_endpoint: str) -> Iterator[None]:
    before = os.environ.get("AWS_ENDPOINT_URL")
    os.environ["AWS_ENDPOINT_URL"] = aws_endpoint
    yield
    if before is None:
        del os.environ["AWS_ENDPOINT_URL"]
    else:
        os.environ["AWS_ENDPOINT_URL"] = before


@pytest.fixture(scope="session")
def dynamodb(_endpoint_variable: None) -> DynamoDBClient:
    return dynamodb_client()


@pytest.fixture(scope="session")
def s3(_endpoint_variable: None) -> S3Client:
    return s3_client()


@pytest.fixture(scope="session")
def table_name(dynamodb: DynamoDBClient) -> str:
    name = f"metadata-{uuid.uuid4().hex}"
    create_table(name, dynamodb)
    return name


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to AWS are repeated without a pause. The process has only one `time.sleep`, which is not replaced."""
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))


@pytest.fixture
def bucket(s3: S3Client) -> str:
    name = f"chunks-{uuid.uuid4().hex}"
    s3.create_bucket(Bucket=name)
    return name


@pytest.fixture(params=["memory", "dynamodb"])
def metadata_store(request: pytest.FixtureRequest) -> MetadataStore:
    """Each implementation of the metadata store; partitions of other tests may be in it."""
    if request.param == "memory":
        return MemoryMetadataStore(TornReads(0))
    return DynamoMetadataStore(request.getfixturevalue("table_name"), request.getfixturevalue("dynamodb"))


@pytest.fixture
def partition() -> str:
    """A partition that no other test uses."""
    return f"test/{uuid.uuid4().hex}"


@pytest.fixture
def s3_storage(bucket: str, s3: S3Client) -> Iterator[S3ChunkStorage]:
    """Tier 2 in an empty bucket."""
    storage = S3ChunkStorage(bucket, s3, concurrency=4)
    yield storage
    storage.close()


@pytest.fixture(params=["memory", "s3"])
def chunk_storage(request: pytest.FixtureRequest) -> ChunkStorage:
    """Each implementation of tier 2, empty."""
    if request.param == "memory":
        return MemoryChunkStorage(SystemClock())
    storage: S3ChunkStorage = request.getfixturevalue("s3_storage")
    return storage


@pytest.fixture
def s3_links(bucket: str, s3: S3Client) -> S3ChunkLinks:
    return S3ChunkLinks(bucket, s3, 60, SystemClock())


@pytest.fixture
def memory_links() -> tuple[MemoryChunkStorage, MemoryChunkLinks]:
    storage = MemoryChunkStorage()
    return storage, MemoryChunkLinks(storage, 60, SystemClock())


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port on which no process can listen while the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def rude_endpoint() -> Iterator[tuple[str, list[bytes]]]:
    """The address of a server that reads the start of each request and hangs up, and what it has read."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                connection, _ = server.accept()
                with connection:
                    start = connection.recv(65536)
                    if not start:
                        return
                    received.append(start)  # before it hangs up: the client may look then

        thread = threading.Thread(target=serve, name="rude-endpoint")
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", received
        socket.create_connection(server.getsockname()).close()  # says nothing: the end
        thread.join()

"""The clusters that the client's tests use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from real_cluster import RealCluster, WorkingQueue, client_of, secure_cluster, serve_functions
from scripted_cluster import Cluster
from shared_stack import IS_SECURE

from functions import wiring
from headrace.client import Headrace
from headrace.controller.operations.registry import request_processor


@pytest.fixture
def make_cluster() -> Iterator[Callable[[int], Cluster]]:
    """Makes clusters of a stream with so many segments; all are stopped after the test."""
    clusters: list[Cluster] = []

    def make(segments: int) -> Cluster:
        clusters.append(Cluster(segments))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def cluster(make_cluster: Callable[[int], Cluster]) -> Cluster:
    """A stream of two segments."""
    return make_cluster(2)


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A cluster on which the functions work; it is stopped after the test."""
    cluster = secure_cluster(monkeypatch, tmp_path_factory.mktemp("secure")) if IS_SECURE else RealCluster()
    serve_functions(cluster, monkeypatch)
    yield cluster
    cluster.close()
    wiring.forget_services()


@pytest.fixture
def request_queue(real: RealCluster) -> Iterator[WorkingQueue]:
    """A queue that processes requests on tables and reader groups at once; it is stopped before the cluster."""
    queue = WorkingQueue()
    queue.start(request_processor(real.metadata, real.segment_stores, real.clock, lambda: queue))
    yield queue
    queue.stop()


@pytest.fixture
def headrace(real: RealCluster) -> Iterator[Headrace]:
    """A client of the real cluster, with the scope `shop`."""
    with client_of(real) as client:
        client.admin.create_scope("shop")
        yield client

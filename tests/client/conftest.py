"""The clusters that the client's tests use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from scripted_cluster import Cluster


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

"""The documents of a healthy cluster, which tests change."""

from __future__ import annotations

import pytest
from healthy_cluster import healthy_facts

from headrace.doctor.cluster_checks import ClusterFacts


@pytest.fixture
def facts() -> ClusterFacts:
    """Three stores in three zones, eight containers with logs of three copies, no letter."""
    return healthy_facts()

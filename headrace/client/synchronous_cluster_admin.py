"""`ClusterAdmin` for programs without an event loop; thread-safe.

Generated from `cluster_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from headrace.api.cluster import ClusterView, ContainerMapView
from headrace.client.cluster_admin import AsyncClusterAdmin
from headrace.client.loop_thread import LoopThread


class ClusterAdmin:
    """Reads the state of segment stores and containers."""

    def __init__(self, thread: LoopThread, core: AsyncClusterAdmin) -> None:
        self._thread = thread
        self._core = core

    def get(self) -> ClusterView:
        """Returns the stores with their leases and the containers that the map assigns to them."""
        return self._thread.run(self._core.get())

    def containers(self) -> ContainerMapView:
        """Returns for each container its assigned store and the store that has claimed it."""
        return self._thread.run(self._core.containers())

"""Sizes of a deployment that its processes use when their environment does not set them.

They are not in the topology, so that a segment store does not import the declarations of functions and routes: each
change of a module that a store imports replaces all stores.
"""

from __future__ import annotations

CONTAINER_COUNT = 8
"""Segment containers of a deployment. The number never changes, because it decides the container of every segment."""

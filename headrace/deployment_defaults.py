"""Sizes of a deployment that its processes assume where their environment does not say.

Apart from the topology, so that a segment store does not depend on the declarations of functions and routes: each
change of what a store imports replaces all stores.
"""

from __future__ import annotations

CONTAINER_COUNT = 8
"""Segment containers of a deployment: fixed for its life, since it decides where every segment lives."""

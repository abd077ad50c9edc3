"""Sizes and times of a deployment that its processes use when their environment does not set them.

They are not in the topology, so that a segment store does not import the declarations of functions and routes: each
change of a module that a store imports replaces all stores.
"""

from __future__ import annotations

CONTAINER_COUNT = 8
"""Segment containers of a deployment. The number never changes, because it decides the container of every segment."""

RETENTION_PERIOD_MS = 30 * 60 * 1000
"""How often a cut at the tail is added to the retention set of a stream, and how often retention truncates."""

COMPLETED_TRANSACTIONS_KEPT_MS = 24 * 3600 * 1000
"""How long the outcome of a completed transaction can be queried."""

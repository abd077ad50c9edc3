"""Sizes and times of a deployment that its processes use when their environment does not set them, and names in it.

They are not in the topology, so that a segment store does not import the declarations of functions and routes: each
change of a module that a store imports replaces all stores.
"""

from __future__ import annotations

CONTAINER_COUNT = 8
"""Segment containers of a deployment. The number never changes, because it decides the container of every segment."""

S3_CONTAINERS_MAX = 64
"""At most so many more containers have their logs in S3. Four are a good number, since each puts on its own."""

LOG_OBJECTS_PREFIX = "logs/"
"""The names of all objects of logs in S3 begin so. A lifecycle rule of the bucket has the same prefix."""

RETENTION_PERIOD_MS = 30 * 60 * 1000
"""How often a cut at the tail is added to the retention set of a stream, and how often retention truncates."""

COMPLETED_TRANSACTIONS_KEPT_MS = 24 * 3600 * 1000
"""How long the outcome of a completed transaction can be queried."""

TOKENS_VARIABLE = "HEADRACE_TOKENS"
"""Whether segment stores want a delegation token with each request."""

TOKENS_OFF, TOKENS_REQUIRED = "off", "required"
"""Its values."""

"""The bucket of a stream. Indexes of due work have one partition for each bucket.

This is not in `record_layout`, because the number of buckets is part of the topology. Segment stores use that module,
and their image must not change with the functions.
"""

from __future__ import annotations

from headrace import topology
from headrace.model.due_work import bucket_of_stream
from headrace.model.names import scoped_stream_name


def bucket_of(scope: str, stream: str) -> int:
    """The bucket of a stream: 0 to `topology.BUCKET_COUNT` - 1."""
    return bucket_of_stream(scoped_stream_name(scope, stream), topology.BUCKET_COUNT)

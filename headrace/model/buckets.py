"""Over which bucket the pending work of a stream is found."""

from __future__ import annotations

from headrace.model.routing import container_of_hash_key


def bucket_of_stream(scoped_name: str, bucket_count: int) -> int:
    """The bucket, 0-based, of `scope/stream`; the same for ever as long as the number of buckets is."""
    return container_of_hash_key(scoped_name, bucket_count)

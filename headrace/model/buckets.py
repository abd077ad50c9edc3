"""Buckets: the parts into which streams are divided for periodic tasks."""

from __future__ import annotations

from headrace.model.routing import container_of_hash_key


def bucket_of_stream(scoped_name: str, bucket_count: int) -> int:
    """The bucket, 0-based, of `scope/stream`. It depends only on the name and on the number of buckets."""
    return container_of_hash_key(scoped_name, bucket_count)

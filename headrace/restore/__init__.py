"""`headrace restore`: brings a deployment back to an earlier time, from a copy of its table and the bucket's versions.

Needs botocore, pynamodb and crc32c (extra `headrace[segment-store]`).
"""

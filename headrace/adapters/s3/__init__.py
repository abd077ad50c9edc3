"""Tier 2 in one S3 bucket: immutable objects, and links with which readers fetch parts of them."""

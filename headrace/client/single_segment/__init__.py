"""Byte streams, revisioned streams and synchronizers: streams that one segment carries."""

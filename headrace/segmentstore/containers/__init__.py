"""Segment containers: the metadata of their segments, and the operations that change it through the log."""

"""The control plane in memory."""

from stream_world_fixtures import stream_world, world

__all__ = ["stream_world", "world"]

"""The control plane in memory."""

from stream_world_fixtures import world

__all__ = ["world"]

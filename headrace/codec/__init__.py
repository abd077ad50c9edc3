"""Bytes to values and back, pure: the wire protocol, event framing, snapshots and text forms."""

"""Bytes to values and back, pure: the wire protocol, event framing, stored records and text forms."""

"""Connections without their sockets: commands in, replies out, in order and within the limits of a connection."""

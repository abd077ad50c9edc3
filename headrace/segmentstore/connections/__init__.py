"""Connections as the engine sees them: commands in, replies out, order and bounds kept. No sockets here."""

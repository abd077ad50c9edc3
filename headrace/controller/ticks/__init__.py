"""Periodic work: each module is what one tick does on a share of the streams."""

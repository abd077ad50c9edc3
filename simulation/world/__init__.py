"""What whole stores and random programs run in: one event loop, and what is below it."""

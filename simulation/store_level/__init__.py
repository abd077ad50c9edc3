"""Whole segment stores on a simulated event loop, without threads and sockets."""

"""Readers of events, and what they read from segments."""

"""Readers of ranges between two stream cuts."""

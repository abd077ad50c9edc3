"""Calls of the controller that manage resources."""

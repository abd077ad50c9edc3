"""Periodic tasks, one module for each kind. A tick runs a task once, on one bucket of the resources."""

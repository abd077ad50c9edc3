"""Measures Headrace on one machine, beside what the machine itself can do. `python -m benchmarks`; see README.md."""

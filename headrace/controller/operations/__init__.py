"""One module per operation, with everything about it: acceptance, ordered steps, rollback and replay of a dead letter.

`registry.py` lists them. `headrace.controller.engine` runs their steps. A method of a service imports its operation
when it is called, because imports are most of a cold start, and most functions answer queries first.
"""

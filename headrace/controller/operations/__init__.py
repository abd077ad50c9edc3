"""One module per operation, with everything about it: acceptance, ordered steps, rollback and replay of a dead letter.

`registry.py` lists them. `headrace.controller.engine` runs their steps.
"""

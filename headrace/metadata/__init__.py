"""The metadata of scopes and streams in the metadata store: keys, reads, and writes under the model's invariants.

Controller services and workflows share this package. It makes no decisions: the model decides which operation may run,
and the services and workflows decide when it runs.
"""

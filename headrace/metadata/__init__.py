"""The metadata of scopes and streams in the metadata store: keys, reads, and writes under the model's invariants.

What controller services and workflows share. It decides nothing: which operation may run is the model's business, when
it runs is the services' and workflows'.
"""

"""The records in the metadata store: one module for each kind of record, with its key, its JSON body, reads and writes.

No other package knows the keys and the JSON. `record_layout` has what several kinds of records share. The modules named
`*_records` read or write several records together.

Controller services and workflows share this package. It makes no decisions: the model decides which operation may run,
and the services and workflows decide when it runs.
"""

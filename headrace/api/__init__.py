"""The values that the HTTP API exchanges, one module per resource, with their JSON in both directions.

A controller service returns them, a function serialises them, the client parses them, and the command line prints them.
The names, types and units of the JSON are those of `docs/api/openapi.json`.

`from_json` also accepts the answer of an older controller: fields that were added later are optional. It raises
KeyError, TypeError, ValueError or AttributeError for any other JSON; the client turns these into CorruptError.
"""

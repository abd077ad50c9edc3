"""The values that the HTTP API exchanges, one module per resource, with their JSON in both directions.

A controller service returns them, a function serialises them, the client parses them, and the command line prints them.
The names, types and units of the JSON are those of `docs/api/openapi.json`.

`from_json` also accepts the answer of a controller of the last release: fields that were added later have defaults. It
raises ValueError for any other JSON, which the client turns into CorruptError.
"""

"""The values that the HTTP API exchanges, one module per resource, with their JSON in both directions.

A controller service returns them, a function serialises them, the client parses them, and the command line prints them.
Names, types and units of the JSON are those of `docs/api/openapi.json`. `from_json` takes what a controller of another
version may answer: fields that were added later are optional. It raises KeyError, TypeError, ValueError or
AttributeError for anything else; the client turns these into CorruptError.
"""

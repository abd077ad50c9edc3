"""The wire protocol over blocking TCP connections."""

"""One service per resource: what the HTTP API and the bridge call."""

"""The HTTP API: one function per kind of resource, which parses a request, calls one service and returns its result."""

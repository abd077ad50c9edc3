"""The client's connections to a segment store: on the event loop, and blocking."""

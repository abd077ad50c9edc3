"""The synchronous classes. Most are generated from the asynchronous ones."""

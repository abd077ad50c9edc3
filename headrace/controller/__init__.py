"""Controller services, one per kind of resource.

A service reads records, applies the rules of the model, writes conditionally, and queues a request for the rest.
"""

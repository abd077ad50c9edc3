"""The controller: services accept requests, operations do their work, ticks do what recurs.

It depends on ports and metadata only, never on how a request or a message arrives.
"""

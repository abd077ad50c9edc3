"""The controller: services answer the API, operations change resources in steps, ticks do periodic work.

It depends on ports and metadata only, and not on the way in which a request or a message arrives.
"""

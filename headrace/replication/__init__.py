"""The protocol of the replicated log, as state machines without I/O: events in, effects out, time as a number.

The shells that drive them send messages, write the journal and the log record, and decide nothing.
"""

"""Processes queued requests that create and delete key-value tables.

A failure stops its message group, which is one table, and no other. These requests are never rolled back: a message
that becomes a dead letter raises an alarm, and the sweeper sends the request again until it is complete.
"""

from __future__ import annotations

from functions import wiring
from functions.processors.fifo_queues import fifo_handler
from headrace import topology

handler = fifo_handler(topology.TABLES_QUEUE, lambda body: wiring.request_processor().process(body))

"""Works on queued requests on key-value tables: create, delete.

A failure stops its message group, which is one table, and no other. Neither request is ever taken back: a message that
becomes a dead letter raises an alarm, and the sweeper sends the request again for as long as it takes.
"""

from __future__ import annotations

from functions import wiring
from functions.processors.fifo_queues import fifo_handler
from headrace import topology

handler = fifo_handler(topology.TABLES_QUEUE, lambda body: wiring.request_processor().process(body))

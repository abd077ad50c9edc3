"""Processes queued aborts. Each transaction is a message group, so aborts run concurrently.

A message only names a transaction that is marked for abort. If its last delivery fails, a dead letter is written, and
the tick sends the abort again until it succeeds.
"""

from __future__ import annotations

from functions import wiring
from functions.processors.fifo_queues import fifo_handler
from headrace import topology

handler = fifo_handler(topology.ABORTS_QUEUE, lambda body: wiring.abort_processor().process(body))

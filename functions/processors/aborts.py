"""Works on queued aborts: one message group per transaction, so that all of them go on at the same time.

A message only says which transaction is marked; one that fails for the last time leaves a letter, and the tick sends
the abort again for as long as it takes.
"""

from __future__ import annotations

from functions import wiring
from functions.processors.fifo_queues import fifo_handler
from headrace import topology

handler = fifo_handler(topology.ABORTS_QUEUE, lambda body: wiring.transaction_aborts().process(body))

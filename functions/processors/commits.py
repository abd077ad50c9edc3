"""Works on queued commits: one message group per stream, so that a stream's commits are one after the other.

A message only says that something is marked; one that fails for the last time leaves a letter, and the tick sends the
commit again for as long as it takes.
"""

from __future__ import annotations

from functions import wiring
from functions.processors.fifo_queues import fifo_handler
from headrace import topology

handler = fifo_handler(topology.COMMITS_QUEUE, lambda body: wiring.commit_processor().process(body))

"""Processes queued commits. Each stream is a message group, so the commits of a stream run one after the other.

A message only says that a transaction of the stream is marked. If its last delivery fails, a dead letter is written,
and the tick sends the commit again until it succeeds.
"""

from __future__ import annotations

from functions import wiring
from functions.processors.fifo_queues import fifo_handler
from headrace import topology

handler = fifo_handler(topology.COMMITS_QUEUE, lambda body: wiring.commit_processor().process(body))

"""Works on queued requests on streams and on what is made of streams.

A failure stops its message group, which is one stream, and no other: the messages of the group come again in order.
A message that fails on its last delivery becomes a dead letter, which raises an alarm; what can be undone is undone
then, and its stream is usable again. Everything else stays accepted: the sweeper sends it again until it is done.
"""

from __future__ import annotations

from functions import wiring
from functions.processors.fifo_queues import fifo_handler
from headrace import topology

handler = fifo_handler(topology.REQUESTS_QUEUE, lambda body: wiring.request_processor().process(body))

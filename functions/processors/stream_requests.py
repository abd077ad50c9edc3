"""Processes queued requests on streams, scopes and reader groups.

A failure stops its message group, which is one resource, and no other. The queue delivers the messages of the group
again in order. A message whose last delivery fails becomes a dead letter, which raises an alarm. Its request is then
rolled back if possible, so that its stream is usable again. Any other request stays accepted: the sweeper sends it
again until it is complete.
"""

from __future__ import annotations

from functions import wiring
from functions.processors.fifo_queues import fifo_handler
from headrace import topology

handler = fifo_handler(topology.REQUESTS_QUEUE, lambda body: wiring.request_processor().process(body))

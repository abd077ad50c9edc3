"""A process that works on every queue but the ticks' as the functions do, until it is killed: `python FILE ENDPOINT`.

It says `ready` once it works. The environment is that of the functions.
"""

from __future__ import annotations

import sys
import threading

from headrace import topology
from headrace.adapters.system_clock import SystemClock
from headrace.local.event_sources import QueuePoller
from headrace.local.lambda_host import LambdaHost
from headrace.local.resources import aws_client

if __name__ == "__main__":
    endpoint = sys.argv[1]
    working = [queue for queue in topology.QUEUES if queue is not topology.TICKS_QUEUE]
    used = {queue.function for queue in working}
    host = LambdaHost(SystemClock(), tuple(function for function in topology.FUNCTIONS if function.name in used))
    sqs = aws_client("sqs", endpoint)
    for queue in working:
        url = sqs.get_queue_url(QueueName=queue.name)["QueueUrl"]
        QueuePoller(queue, url, sqs, host.invoke).start()
    print("ready", flush=True)
    threading.Event().wait()

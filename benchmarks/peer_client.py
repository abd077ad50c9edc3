"""`python -m benchmarks.peer_client SIDE WHAT ADDRESS STREAM EVENT_BYTES EVENTS RATE`: one client at one measurement.

SIDE is `headrace` or `kafka`, WHAT is `batches`, `one by one`, `paced` (EVENTS at RATE a second) or `read`. ADDRESS is
the URL of a controller, or the address of a broker. It prints one line of JSON: `seconds` and `processor_s` of the
client, or percentiles of latencies.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from benchmarks import kafka_client, workloads
from benchmarks.client_process import read_ours, write_ours
from benchmarks.settings import AppendLoad, PacedLoad, Settings
from headrace.client import connect

Found = dict[str, float]


def of_headrace(what: str, url: str, stream: str, load: AppendLoad, rate: int) -> Found:
    if what == "paced":
        with connect(url) as headrace:
            paced = PacedLoad(rate, load.events / rate, load.event_bytes)
            return asdict(workloads.paced_acknowledgements(headrace, stream, paced, Settings()))
    if what == "read":
        return read_ours("read, ours, batches", url, stream, load)
    return write_ours(f"ours, {what}", url, stream, load, 1)


def of_kafka(what: str, address: str, topic: str, load: AppendLoad, rate: int) -> Found:
    if what == "paced":
        return asdict(kafka_client.paced(address, topic, PacedLoad(rate, load.events / rate, load.event_bytes)))
    if what == "read":
        return kafka_client.read(address, topic, load)
    return kafka_client.write(address, topic, load, single=what == "one by one")


def main(side: str, what: str, address: str, stream: str, event_bytes: int, events: int, rate: int) -> Found:
    run = of_headrace if side == "headrace" else of_kafka
    return run(what, address, stream, AppendLoad(event_bytes, events), rate)


if __name__ == "__main__":
    side, what, address, stream = sys.argv[1:5]
    event_bytes, events, rate = map(int, sys.argv[5:8])
    print(json.dumps(main(side, what, address, stream, event_bytes, events, rate)), flush=True)
    os._exit(0)  # native threads are no reason to wait

"""Measures what replicated logs cost in requests to DynamoDB: a table of docs/operating/costs.md.

Only what follows an event of a log is counted. The periodic work of a store (its lease, the map) is another cost.
"""

from __future__ import annotations

from replicated_world import (
    LOG,
    WAIT_S,
    ReplicatedWorld,
    append,
    numbered,
    payloads,
    replicated_world,
    until,
)
from store_meter import Bill, StoreMeter

from headrace.metadata.cluster_records import find_claim, write_claim
from headrace.model.containers import ContainerClaim
from headrace.replication.bounds import WriterBounds
from headrace.segmentstore.log.replicated.replicated_ledgers import ReplicatedLedger

APPENDS = 5_000


async def measured_log_events() -> dict[str, Bill]:
    """The bill of each event of a log with three copies, in the order of the table."""
    bills: dict[str, Bill] = {}
    async with replicated_world("") as world:
        # Members are removed only when their store is known to be gone, never because they are slow.
        world.writer_bounds = WriterBounds(silence_ms=int(WAIT_S * 1000), pulse_ms=50)
        for name in "abc":
            await world.start(name)
        meter = StoreMeter(world.metadata)
        ledger = await _taken_over(world, meter, "a", bills, "open the first ledger of a log")
        meter.bill = bills[f"{APPENDS:,} appends, acknowledged and truncated"] = Bill()
        for first in range(0, APPENDS, 500):
            await append(ledger, *numbered(first, 500))
            ledger.truncate(ledger.next_entry - 10)
        meter.bill = bills["a member restarts and catches up"] = Bill()
        disk = world.nodes["c"].disk
        await world.stop(world.nodes["c"])
        await append(ledger, *numbered(APPENDS, 100))
        c = await world.start("c", disk)
        await until(lambda: c.sessions.log(LOG).durable_end == ledger.next_entry)
        meter.bill = bills["remove a member"] = Bill()
        await world.destroy(c)
        await _until_settled(world, ledger, {"a", "b"})
        meter.bill = bills["add a member"] = Bill()
        await world.start("c")
        await _until_settled(world, ledger, {"a", "b", "c"})
        await world.destroy(world.nodes["a"])
        again = await _taken_over(world, meter, "b", bills, "take over a log")
        assert payloads(again)[-102:-2] == numbered(APPENDS, 100)
        meter.bill = bills["close a log that tier 2 has"] = Bill()
        await world.nodes["b"].ledgers.forget(LOG)
    return bills


async def _taken_over(
    world: ReplicatedWorld, meter: StoreMeter, name: str, bills: dict[str, Bill], event: str
) -> ReplicatedLedger:
    """The log, claimed as a store does it that has read the claims of all containers together."""
    meter.bill = Bill()
    claim = find_claim(world.metadata, LOG)
    meter.bill = bills[event] = Bill()
    world.metadata.write(write_claim(LOG, ContainerClaim("x", "h", 1, "z"), claim[1] if claim else None))
    return await world.nodes[name].ledgers.open(LOG, claim[1] + 1 if claim else 0)


async def _until_settled(world: ReplicatedWorld, ledger: ReplicatedLedger, wanted: set[str]) -> None:
    """Wait until the owner knows that the record names these nodes, and appends again. Reads no record."""
    log = world.nodes["a"].ledgers.owned[LOG]
    await until(lambda: log.log is not None and {world.zones[member] for member in log.log.members} == wanted)
    await append(ledger, b"settled")

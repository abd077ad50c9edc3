"""The port outside of a store process: it takes a free one of its zone in the transaction that writes its lease.

So no two processes have the same port, and the load balancer's listener of a port leads to one process. There are more
ports than processes, because during a deployment the processes of before and of now run together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.metadata.cluster_records import (
    ClusterRecords,
    check_lease,
    decode_external_port,
    external_port_body,
    external_port_key,
)
from headrace.model.external_access import ExternalAddress, ExternalOffer
from headrace.ports.metadata_store import Check, Create, Replace, Write


@dataclass(frozen=True, slots=True)
class TakenPort:
    """The address outside, None without a free port; and what must be written together with the lease."""

    address: ExternalAddress | None = None
    writes: Sequence[Write] = ()


def take_port(records: ClusterRecords, offer: ExternalOffer | None, store_id: str) -> TakenPort:
    """The port that the store has already, or else the first free one: its last store has no lease, or an ended one.

    Costs a batch read, and a query if the store has no port yet. The writes fail if another store is faster.

    Raises:
        CorruptError: a record cannot be read.
        ThrottledError, UnavailableError: the metadata store does not answer.
    """
    if offer is None:
        return TakenPort()
    keys = {port: external_port_key(port) for port in offer.ports}
    found = dict(zip(keys, records.store.get_many(list(keys.values())), strict=True))
    holders = {port: decode_external_port(record.body) for port, record in found.items() if record is not None}
    for port, holder in holders.items():
        if holder == store_id and (own := found[port]) is not None:
            return TakenPort(offer.address(port), (Check(keys[port], own.version),))
    leases = {stored.lease.store_id: stored for stored in records.leases()}
    body = external_port_body(store_id)
    for port, record in found.items():
        if record is None:
            return TakenPort(offer.address(port), (Create(keys[port], body),))
        former = leases.get(holders[port])
        if former is None or former.lease.has_ended:
            writes = (Replace(keys[port], body, record.version), check_lease(holders[port], former))
            return TakenPort(offer.address(port), writes)
    return TakenPort()

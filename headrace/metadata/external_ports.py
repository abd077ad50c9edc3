"""The ports outside that store processes have taken. A port belongs to a store while the store's lease names it.

A process takes a free one in the transaction that writes its lease. So no two processes have the same port, and the
load balancer's listener of a port leads to one process. There are more ports than processes, because during a
deployment the processes of before and of now run together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.metadata.cluster_records import ClusterRecords, check_lease
from headrace.metadata.record_layout import decoded, versioned
from headrace.model.cluster import StoreLease
from headrace.model.containers import CLUSTER_PARTITION
from headrace.model.external_access import ExternalAddress, ExternalOffer
from headrace.model.record_fields import record_field
from headrace.ports.metadata_store import Body, Check, Create, Key, Replace, Write


def external_port_key(port: int) -> Key:
    return Key(CLUSTER_PARTITION, f"external/{port:05d}")


def external_port_body(store_id: str) -> dict[str, Any]:
    return versioned(store=store_id)


def decode_external_port(body: Body) -> str:
    """The store that has taken the port."""
    return decoded("external port", body, lambda fields: record_field(fields, "store", str))


@dataclass(frozen=True, slots=True)
class TakenPort:
    """The address outside, None without a free port; and what must be written together with the lease."""

    address: ExternalAddress | None = None
    writes: Sequence[Write] = ()


def take_port(records: ClusterRecords, offer: ExternalOffer | None, store_id: str) -> TakenPort:
    """The port that the store has already, or else the first free one: no lease that has not ended names it.

    Costs a batch read, and a query if the store has no port yet. The writes fail if another store is faster.

    Raises:
        CorruptError: a record cannot be read.
        ThrottledError, UnavailableError: the metadata store does not answer.
    """
    if offer is None:
        return TakenPort()
    keys = {port: external_port_key(port) for port in offer.ports}
    records_by_port = dict(zip(keys, records.store.get_many(list(keys.values())), strict=True))
    owners = {port: decode_external_port(record.body) for port, record in records_by_port.items() if record is not None}
    for port, record in records_by_port.items():
        if record is not None and owners[port] == store_id:
            return TakenPort(offer.address(port), (Check(keys[port], record.version),))
    leases = {stored.lease.store_id: stored for stored in records.leases()}
    body = external_port_body(store_id)
    for port, record in records_by_port.items():
        if record is None:
            return TakenPort(offer.address(port), (Create(keys[port], body),))
        former = leases.get(owners[port])
        if former is None or not _names(former.lease, port):
            writes = (Replace(keys[port], body, record.version), check_lease(owners[port], former))
            return TakenPort(offer.address(port), writes)
    return TakenPort()


def _names(lease: StoreLease, port: int) -> bool:
    """Whether a store serves at the port. One that was started with other ports has taken another meanwhile."""
    return not lease.has_ended and lease.external is not None and lease.external.port == port

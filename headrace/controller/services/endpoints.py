"""The addresses of segment stores in the network of a client."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.segments import SegmentEndpoint
from headrace.metadata.cluster_records import find_external_addresses
from headrace.model.containers import ContainerClaim
from headrace.model.external_access import Network
from headrace.ports.metadata_store import MetadataStore


def endpoints_in(
    network: Network, store: MetadataStore, claims: Mapping[int, tuple[ContainerClaim, int]]
) -> dict[int, SegmentEndpoint]:
    """The endpoints by container, for claims with their epochs. A store without an address in the network is left out.

    Costs a batch read of leases for a client outside, which claims do not have, and nothing in the network of the
    stores.
    """
    if network is Network.VPC:
        return {
            container: SegmentEndpoint(claim.host, claim.port, claim.zone, container, epoch, claim.tls_name)
            for container, (claim, epoch) in claims.items()
        }
    addresses = find_external_addresses(store, (claim.store_id for claim, _ in claims.values()))
    return {
        container: SegmentEndpoint(found.reached_at, found.port, claim.zone, container, epoch, found.name)
        for container, (claim, epoch) in claims.items()
        if (found := addresses.get(claim.store_id)) is not None
    }

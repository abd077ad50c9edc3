"""The addresses of segment stores in the network of a client."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.segments import SegmentEndpoint
from headrace.metadata.cluster_records import find_claim, find_external_addresses
from headrace.model import segments
from headrace.model.containers import ContainerClaim
from headrace.model.errors import UnavailableError
from headrace.model.external_access import Network
from headrace.model.log_classes import ContainerLayout
from headrace.model.names import check_segment_name_part, segment_name
from headrace.model.segments import segment_epoch, segment_number
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
        container: SegmentEndpoint(address.reached_at, address.port, claim.zone, container, epoch, address.name)
        for container, (claim, epoch) in claims.items()
        if (address := addresses.get(claim.store_id)) is not None
    }


class SegmentEndpoints:
    """The segment stores that serve segments, by the claims of their containers. It asks no store."""

    def __init__(self, store: MetadataStore, container_count: int, s3_containers: int = 0) -> None:
        self._store = store
        self._layout = ContainerLayout(container_count, s3_containers)

    def endpoint(self, scope: str, stream: str, segment_id: int, network: Network = Network.VPC) -> SegmentEndpoint:
        """The segment store that serves a segment; any valid id has an answer, because the stream is not read.

        `network` is that of the client.

        Raises:
            UnavailableError: no segment store has claimed the container yet, or it has no address in the network yet.
        """
        segments.segment_id(segment_epoch(segment_id), segment_number(segment_id))  # Rejects an invalid id.
        scope, stream = check_segment_name_part("scope", scope), check_segment_name_part("stream", stream)
        name = segment_name(scope, stream, segment_id)
        container = self._layout.container_of_segment(name)
        claim = find_claim(self._store, container)
        if claim is None:
            raise UnavailableError(
                f"no segment store has claimed container {container} of segment {name} yet",
                details={"container": container},
            )
        endpoint = endpoints_in(network, self._store, {container: claim}).get(container)
        if endpoint is None:
            raise UnavailableError(
                f"the store of container {container} has no address outside its network yet",
                details={"container": container},
            )
        return endpoint

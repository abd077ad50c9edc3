"""Tries the data path: connects to each store, and writes an event into each container and reads it again.

It is the only part that writes: into a stream that the caller has made for it, and deletes afterwards.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.api.segments import SegmentEndpoint, StartedSegment
from headrace.doctor.findings import Finding, failure, listed, skipped, warning, well
from headrace.doctor.round_trips import RoundTrip, round_trips
from headrace.model.errors import HeadraceError, UnauthorizedError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.ports.clock import Clock

if TYPE_CHECKING:
    from headrace.client import AsyncHeadrace, Headrace

SEGMENTS_PER_CONTAINER: Final = 6
"""Segments are spread by a hash, so that a container is left out now and then: of eight, once in seventy times."""

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 15.0
"""How long all containers together may take to acknowledge their events and to give them back."""

CERTIFICATE_S_MIN: Final = 10 * 86_400
"""The function that issues certificates reports an error from then on."""


@dataclass(frozen=True, slots=True)
class Place:
    """A segment of a container, and the store that serves it."""

    segment: StartedSegment
    endpoint: SegmentEndpoint

    @property
    def address(self) -> tuple[str, int, str]:
        return self.endpoint.host, self.endpoint.port, self.endpoint.tls_name


def segments_for(container_count: int) -> int:
    """How many segments the stream of the check has."""
    return min(SEGMENTS_PER_CONTAINER * container_count, SEGMENTS_PER_STREAM_MAX)


def data_path_findings(
    client: Headrace,
    open_async: Callable[[], AsyncHeadrace],
    scope: str,
    stream: str,
    container_count: int,
    clock: Clock,
) -> list[Finding]:
    """Examines the stores and containers of a stream that exists. `open_async` opens another client, as `client`.

    Raises:
        HeadraceError: the controller does not answer about the stream.
    """
    places, unserved = _places(client, scope, stream)
    ends_s: dict[str, float] = {}
    refused: dict[str, str] = {}
    addresses = sorted({place.address for place in places.values()})
    for host, port, tls_name in addresses:
        name = f"{host}:{port}"
        try:
            ends_s[name] = _certificate_end_s(client, host, port, tls_name)
        except (OSError, HeadraceError) as error:
            refused[name] = error.message if isinstance(error, HeadraceError) else str(error)
    return [
        _connections(len(addresses), refused),
        _certificates({name: end_s for name, end_s in ends_s.items() if end_s}, clock.now_ms() / 1000),
        _round_trip(_tried(open_async, scope, stream, places, clock), unserved, container_count),
    ]


def findings_without_stream(error: HeadraceError) -> list[Finding]:
    """What is known if the stream could not be made or asked about: a cluster whose stores are away refuses it."""
    if isinstance(error, UnauthorizedError):
        reason = f"{error.message}; it needs the managed policy headrace-manage-streams"
        return [skipped(check, reason) for check in ("connections", "certificates", "round-trip")]
    unknown = [skipped(check, "there is no stream to try them with") for check in ("connections", "certificates")]
    return [*unknown, failure("round-trip", f"there is no stream to try it with: {error.message}")]


def _places(client: Headrace, scope: str, stream: str) -> tuple[dict[int, Place], list[str]]:
    """A segment of each container by its number, and the errors for segments that no store serves."""
    places: dict[int, Place] = {}
    unserved: list[str] = []
    for segment in client.admin.segments(scope, stream):
        try:
            endpoint = client.admin.endpoint(scope, stream, segment.segment_id)
        except HeadraceError as error:
            if error.message not in unserved:
                unserved.append(error.message)
        else:
            places.setdefault(endpoint.container, Place(segment, endpoint))
    return places, unserved


def _certificate_end_s(client: Headrace, host: str, port: int, tls_name: str) -> float:
    """Connects as clients do. Returns when the certificate ends in seconds since 1970; 0 for a store without TLS."""
    context = client.admin.trust.context() if tls_name else None
    with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as plain:
        if context is None:
            return 0.0
        with context.wrap_socket(plain, server_hostname=tls_name) as secured:
            certificate = secured.getpeercert() or {}
    return float(ssl.cert_time_to_seconds(str(certificate["notAfter"])))


def _connections(stores: int, refused: Mapping[str, str]) -> Finding:
    if refused:
        reasons = listed([f"{name} ({reason})" for name, reason in refused.items()])
        return failure("connections", f"refused by {len(refused)} of {stores} processes: {reasons}")
    if not stores:
        return failure("connections", "no store serves a segment of the check")
    return well("connections", f"processes that accept them: {stores}")


def _certificates(ends_s: Mapping[str, float], now_s: float) -> Finding:
    if not ends_s:
        return skipped("certificates", "no store has shown a certificate")
    soon = [
        f"{name} ({(end_s - now_s) / 86_400:.1f} days)"
        for name, end_s in ends_s.items()
        if end_s - now_s < CERTIFICATE_S_MIN
    ]
    if soon:
        return warning("certificates", f"end soon: {listed(soon)}")
    return well("certificates", f"the first ends in {(min(ends_s.values()) - now_s) / 86_400:.1f} days")


def _tried(
    open_async: Callable[[], AsyncHeadrace], scope: str, stream: str, places: Mapping[int, Place], clock: Clock
) -> dict[int, RoundTrip]:
    segments = {container: place.segment for container, place in places.items()}

    async def tried() -> dict[int, RoundTrip]:
        async with open_async() as client:
            return await round_trips(
                client, scope, stream, segments, mark="check", limit_s=ANSWER_TIMEOUT_S, clock=clock
            )

    return asyncio.run(tried())


def _round_trip(trips: Mapping[int, RoundTrip], unserved: list[str], container_count: int) -> Finding:
    failed = {container: trip.error for container, trip in sorted(trips.items()) if trip.error}
    if failed:
        reasons = listed([f"{container} ({reason})" for container, reason in failed.items()])
        return failure("round-trip", f"{len(failed)} of {len(trips)} containers: {reasons}")
    if unserved:
        return failure("round-trip", f"segments without a store: {listed(unserved)}")
    return well("round-trip", f"an event came back from {len(trips)} of {container_count} containers")

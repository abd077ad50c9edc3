"""Parameters of paths and queries: how they are decoded and checked, and their descriptions in the API document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated
from urllib.parse import unquote

from msgspec import Meta

from functions import wiring
from functions.operations import PathParameter, QueryParameter
from headrace.api.stream_cuts import SEGMENT_ID_MAX, decimal
from headrace.model.errors import InvalidRequestError
from headrace.model.external_access import Network, NetworkName
from headrace.model.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from headrace.model.names import check_known_name

TIME_MS_MAX = (1 << 63) - 1


def path_value(text: str) -> str:
    """The value of a path parameter: `canonical_event` has refused every escape but that of a slash."""
    return unquote(text)


def path_name(description: str, check: Callable[[str], str]) -> PathParameter:
    """A path parameter whose value `check` returns, or refuses with InvalidRequestError."""
    return PathParameter(description, lambda text: check(path_value(text)))


def known_name(kind: str) -> PathParameter:
    """The name of a scope, or of something in one."""
    return path_name(f"Name of a {kind}", lambda text: check_known_name(kind, text))


def path_number(description: str, what: str, most: int) -> PathParameter:
    """A number in decimal digits from 0 to `most`."""
    return PathParameter(description, lambda text: decimal(path_value(text), what, most))


ScopeName = Annotated[str, known_name("scope")]
StreamName = Annotated[str, known_name("stream")]
ReaderGroupName = Annotated[str, known_name("reader group")]
TableName = Annotated[str, known_name("key-value table")]
SegmentId = Annotated[int, path_number("Id of a segment: epoch << 32 | number", "segment id", SEGMENT_ID_MAX)]
EpochNumber = Annotated[int, path_number("Number of an epoch", "epoch", (1 << 31) - 1)]

PageLimit = Annotated[int, Meta(ge=1, le=PAGE_ITEMS_MAX), QueryParameter("Most items on this page")]
PAGE_LIMIT_DEFAULT = PAGE_ITEMS_DEFAULT
ContinuationToken = Annotated[
    Annotated[str, Meta(max_length=512)] | None, QueryParameter("From the page before", "continuationToken")
]
NetworkOfClient = Annotated[
    NetworkName,
    QueryParameter("Where the client is: `external` if it reaches the segment stores through their load balancer"),
]


def network_of(name: NetworkName) -> Network:
    """The network of a client.

    Raises:
        InvalidRequestError: code "no_external_network": this deployment has no addresses outside its network.
    """
    network = Network(name)
    if network is Network.EXTERNAL and not wiring.environment().external_domain:
        raise InvalidRequestError(
            "this deployment has no addresses for clients outside its VPC: deploy it with -c external_domain=DOMAIN, "
            "or connect from within the VPC without the network `external`",
            code="no_external_network",
        )
    return network


def continue_after(token: str | None) -> str | None:
    """The name after which the page starts; raises InvalidRequestError for a token that cannot be a name."""
    return check_known_name("continuationToken", token) if token else None

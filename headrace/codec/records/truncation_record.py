"""The stream cut at which a stream begins; there is no record until it is truncated."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.stream_cuts import StreamCut
from headrace.model.truncation import Truncation

TRUNCATION_SORT = "truncation"


def truncation_body(truncation: Truncation) -> dict[str, Any]:
    cut = truncation.cut
    return versioned(scope=cut.scope, stream=cut.stream, positions=[list(position) for position in cut.positions])


def truncation_of_body(body: Body) -> Truncation:
    return decoded("truncation", body, _truncation)


def _truncation(body: Body) -> Truncation:
    positions = tuple((int(identifier), int(offset)) for identifier, offset in body["positions"])
    return Truncation(StreamCut(str(body["scope"]), str(body["stream"]), positions))

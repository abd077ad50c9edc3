"""History over HTTP: the chunks in S3 that store a range of a segment, with links to read them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from functions import wiring
from functions.controller.parameters import PAGE_LIMIT_DEFAULT, PageLimit, ScopeName, SegmentId, StreamName
from functions.http_api import HttpApi, lambda_handler
from functions.operations import QueryParameter
from headrace.api.plans import Chunks
from headrace.api.stream_cuts import OFFSET_MAX

api = HttpApi()

_Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
FromOffset = Annotated[_Offset, QueryParameter("First byte", name="from")]
ToOffset = Annotated[_Offset | None, QueryParameter("End; without: as far as S3 has it", name="to")]


@api.route(
    "GET",
    "/v1/scopes/<scope>/streams/<stream>/segments/<segment>/chunks",
    summary="Links to a segment's history in S3",
    tag="History",
)
def list_chunks(
    scope: ScopeName,
    stream: StreamName,
    segment: SegmentId,
    start: FromOffset = 0,
    end: ToOffset = None,
    limit: PageLimit = PAGE_LIMIT_DEFAULT,
) -> Chunks:
    return wiring.history_service().chunks(scope, stream, segment, start, end, limit)


handler = lambda_handler(api)

"""History over HTTP: the chunks in S3 that store a range of a segment, with links to read them."""

from __future__ import annotations

from typing import Annotated

from aws_lambda_powertools.event_handler.openapi.params import Query

from functions import wiring
from functions.controller.models_history import ChunkList
from functions.controller.parameters import OFFSET_MAX, PAGE_LIMIT_DEFAULT, PageLimit, ScopeName, SegmentId, StreamName
from functions.http_api import http_api, lambda_handler

api = http_api()

FromOffset = Annotated[int, Query(alias="from", ge=0, le=OFFSET_MAX, description="First byte")]
ToOffset = Annotated[
    int | None, Query(alias="to", ge=0, le=OFFSET_MAX, description="End; without: as far as S3 has it")
]


@api.get(
    "/v1/scopes/<scope>/streams/<stream>/segments/<segment>/chunks",
    summary="Links to a segment's history in S3",
    tags=["History"],
)
def list_chunks(
    scope: ScopeName,
    stream: StreamName,
    segment: SegmentId,
    start: FromOffset = 0,
    end: ToOffset = None,
    limit: PageLimit = PAGE_LIMIT_DEFAULT,
) -> ChunkList:
    found = wiring.history_service().chunks(scope, stream, int(segment), start, end, limit)
    return ChunkList.from_value(found)


handler = lambda_handler(api)

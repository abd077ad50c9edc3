"""Watermarks over HTTP: writers note their time and position, readers ask for the newest watermark."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from aws_lambda_powertools.event_handler.openapi.params import Path
from pydantic import AfterValidator

from functions import wiring
from functions.controller import models_watermarks as models
from functions.controller.parameters import ScopeName, StreamName, path_value
from functions.http_api import http_api, lambda_handler
from headrace.model.writer_marks import check_writer_name

api = http_api()


def _writer_name(text: str) -> str:
    return check_writer_name(path_value(text))


WriterName = Annotated[str, AfterValidator(_writer_name), Path(description="Id of a writer, of its own choice")]

_STREAM = "/v1/scopes/<scope>/streams/<stream>"
_WRITER = f"{_STREAM}/writers/<writer>"


@api.put(
    f"{_WRITER}/position",
    summary="Note a writer's time and position",
    tags=["Watermarks"],
    status_code=HTTPStatus.NO_CONTENT,
)
def note_position(scope: ScopeName, stream: StreamName, writer: WriterName, request: models.PositionRequest) -> None:
    wiring.watermark_service().note_position(scope, stream, writer, request.time, request.offsets())


@api.delete(_WRITER, summary="Wait no longer for a writer", tags=["Watermarks"], status_code=HTTPStatus.NO_CONTENT)
def remove_writer(scope: ScopeName, stream: StreamName, writer: WriterName) -> None:
    wiring.watermark_service().remove_writer(scope, stream, writer)


@api.get(f"{_STREAM}/watermark", summary="The newest watermark", tags=["Watermarks"])
def newest_watermark(scope: ScopeName, stream: StreamName) -> models.NewestWatermarkAnswer:
    found = wiring.watermark_service().newest_watermark(scope, stream)
    return models.NewestWatermarkAnswer.from_value(found)


handler = lambda_handler(api)

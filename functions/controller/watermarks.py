"""Watermarks over HTTP: writers note their time and position, readers ask for the newest watermark."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from functions import wiring
from functions.controller.parameters import ScopeName, StreamName, path_name
from functions.http_api import HttpApi, lambda_handler
from headrace.api.watermarks import NewestWatermark, PositionRequest
from headrace.model.errors import InvalidRequestError
from headrace.model.writer_marks import check_writer_name

api = HttpApi()


def _check_writer_in_path(name: str) -> str:
    """Refuses the id with which the path of a position matches policies for subscribers: IAM's `*` matches slashes."""
    if name == "subscribers":
        raise InvalidRequestError("no writer can have the id 'subscribers'", code="invalid_name")
    return check_writer_name(name)


WriterName = Annotated[str, path_name("Id of a writer, of its own choice", _check_writer_in_path)]

_STREAM = "/v1/scopes/<scope>/streams/<stream>"
_WRITER = f"{_STREAM}/writers/<writer>"


@api.route(
    "PUT",
    f"{_WRITER}/position",
    summary="Note a writer's time and position",
    tag="Watermarks",
    status=HTTPStatus.NO_CONTENT,
)
def note_position(scope: ScopeName, stream: StreamName, writer: WriterName, request: PositionRequest) -> None:
    wiring.watermark_service().note_position(scope, stream, writer, request.time, request.offsets())


@api.route("DELETE", _WRITER, summary="Wait no longer for a writer", tag="Watermarks", status=HTTPStatus.NO_CONTENT)
def remove_writer(scope: ScopeName, stream: StreamName, writer: WriterName) -> None:
    wiring.watermark_service().remove_writer(scope, stream, writer)


@api.route("GET", f"{_STREAM}/watermark", summary="The newest watermark", tag="Watermarks")
def newest_watermark(scope: ScopeName, stream: StreamName) -> NewestWatermark:
    return wiring.watermark_service().newest_watermark(scope, stream)


handler = lambda_handler(api)

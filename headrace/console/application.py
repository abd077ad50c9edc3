"""The Starlette application: routes, static files, and the pages of failures."""

from __future__ import annotations

import logging
from mimetypes import guess_type

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.console.browser_guard import BrowserGuard
from headrace.console.change_pages import ChangePages
from headrace.console.console_state import ConsoleState
from headrace.console.error_pages import Problem, problem_of, unexpected
from headrace.console.other_pages import OtherPages
from headrace.console.static_files import static_file
from headrace.console.stream_pages import StreamPages
from headrace.model.errors import HeadraceError

_log = logging.getLogger("headrace.console")


def create_application(console: ConsoleState, port: int, token: str) -> BrowserGuard:
    """The application for a server on `port` of loopback. `token` lets a browser in."""

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HeadraceError), "the handler is that of this class"
        return console.problem(request, problem_of(error))

    def not_served(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "the handler is that of this class"
        return console.problem(
            request,
            Problem(error.status_code, "No such page", "The console has no such page.", "Start from the streams."),
        )

    def failed(request: Request, error: Exception) -> Response:
        _log.error("the page %a failed", request.url.path, exc_info=error)
        return console.problem(request, unexpected())

    application = Starlette(
        routes=[
            *OtherPages(console).routes(),
            *StreamPages(console).routes(),
            *(ChangePages(console).routes() if console.allows_changes else ()),
            Route("/static/{file}", _static),
        ],
        exception_handlers={HeadraceError: refused, HTTPException: not_served, Exception: failed},
    )

    def refuse(request: Request, status: int, title: str, advice: str) -> Response:
        return console.problem(request, Problem(status, title, "", advice))

    return BrowserGuard(application, port, token, refuse, takes_forms=console.allows_changes)


async def _static(request: Request) -> Response:
    """In the loop: all threads may be waiting for the deployment."""
    path = static_file(request.path_params["file"])
    if path is None:
        raise HTTPException(404)
    return Response(path.read_bytes(), media_type=guess_type(path.name)[0])

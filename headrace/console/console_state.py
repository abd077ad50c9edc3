"""What all pages share: the client, the watchers that remember, the templates, and how a page is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from headrace.api.streams import StreamView
from headrace.cli.outcome import cell, state_text, time_text
from headrace.cli.parameters import ScopedName
from headrace.cli.quantities import behind_text, count_text, duration_text, rate_text, scaling_text, size_text
from headrace.cli.stream_describe import Growth, RateSampler
from headrace.client import Headrace
from headrace.client.http_api import shown_url
from headrace.codec.places import segment_text
from headrace.console.error_pages import Problem
from headrace.console.event_text import event_line
from headrace.console.group_watch import GroupWatch
from headrace.console.live_views import EVENTS_ON_PAGE_MAX, LiveViews
from headrace.console.store_reach import AWAY, EPOCHS_MEASURED_MAX, StoreReach
from headrace.model.errors import InvalidRequestError
from headrace.model.names import check_known_name
from headrace.ports.clock import Clock

FOLDER = Path(__file__).parent
TEXT_MAX = 500
"""Characters of a parameter of the address."""

LONG_TEXT_MAX = 20_000
"""Characters of a stream cut, or of a key of a table in hexadecimal digits."""


class ConsoleState:
    """One console of one deployment. `client` is closed by the caller."""

    def __init__(self, client: Headrace, url: str, clock: Clock, *, allows_changes: bool = False) -> None:
        self.client = client
        self.allows_changes = allows_changes
        self.admin = client.admin
        self.clock = clock
        self.reach = StoreReach(client, clock.monotonic_s)
        self.views = LiveViews(client, self.reach, clock.monotonic_s)
        self.groups = GroupWatch(client, self.reach, clock.monotonic_s)
        self._sampler = RateSampler(client.admin, clock.monotonic_s)
        self._templates = _templates()
        self._templates.globals.update(deployment=shown_url(url), allows_changes=allows_changes)

    def growth(self, stream: ScopedName) -> Growth | None:
        """How fast the stream grows since a page asked last; None the first time, and if stores do not answer."""
        return self.reach.answer_or_none(lambda: self._sampler.sample(stream))

    def kept(self, stream: ScopedName, view: StreamView) -> int | None:
        """The bytes between head and tail; None if that is not known, as `StoreReach.behind`."""
        if view.epoch <= EPOCHS_MEASURED_MAX:
            return self.reach.answer_or_none(lambda: self.admin.stream_cut_distance(*stream))
        head = self.admin.stream_cut(*stream, at="earliest").offsets
        return self.reach.behind(stream, head, newest_epoch=view.epoch)

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """The page or the part of a page that a template makes."""
        text = self._templates.get_template(template).render(
            path=request.url.path, query=request.query_params, **values
        )
        return HTMLResponse(text, status)

    def problem(self, request: Request, problem: Problem) -> HTMLResponse:
        """The page of a failure; only its message for a part of a page, which asks again by itself."""
        is_part = "hx-request" in request.headers
        template = "problem_part.html" if is_part else "problem.html"
        return self.page(request, template, problem.status, problem=problem, resource=_resource(request))

    def close(self) -> None:
        """Closes readers and groups."""
        self.views.close()
        self.groups.close()
        self.reach.close()


def _resource(request: Request) -> str | None:
    """The address of the stream, group or table to which a page belongs; None if it is that page itself, or none."""
    parts = request.url.path.split("/")
    return "/".join(parts[:4]) if "name" in request.path_params and len(parts) > 4 else None


def named(request: Request, kind: str = "stream") -> ScopedName:
    """The scope and the other name of the path. Raises InvalidRequestError if one cannot be a name."""
    parameters = request.path_params
    return ScopedName(check_known_name("scope", parameters["scope"]), check_known_name(kind, parameters["name"]))


def text_parameter(request: Request, name: str, longest: int = TEXT_MAX) -> str:
    """A parameter of the address without blanks around it; empty without it.

    Raises InvalidRequestError if it is longer: a part of a stream cut or of a key would be another one.
    """
    text = request.query_params.get(name, "")
    if len(text) > longest:
        raise InvalidRequestError(f"{name} has {len(text)} characters: the console takes at most {longest}")
    return text.strip()


def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"), autoescape=select_autoescape(default=True), trim_blocks=True
    )
    texts: Mapping[str, Callable[..., str]] = {
        "behind": behind_text,
        "cell": cell,
        "count": count_text,
        "duration": duration_text,
        "rate": rate_text,
        "scaling": scaling_text,
        "segment": segment_text,
        "size": size_text,
        "state": state_text,
        "time": lambda time_ms: Markup("<time>{}</time>").format(time_text(time_ms)),
        "quoted": lambda text: quote(str(text), safe=""),
    }
    environment.filters.update(texts)
    environment.filters["event_line"] = event_line
    environment.globals.update(events_max=EVENTS_ON_PAGE_MAX, away=AWAY)
    return environment

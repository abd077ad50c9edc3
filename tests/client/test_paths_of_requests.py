"""A request reaches the route and the names that were meant, or is refused before it is sent.

HTTP clients and proxies remove `.` and `..` from paths, so that a deletion of the stream `..` would delete its scope.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.adapters.gateway_events import match_route
from headrace.api.reader_groups import ReaderGroupSettings, ReaderGroupView
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.http_api import HttpApi
from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.model.key_value_tables import TableConfiguration
from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, ReaderGroupState
from headrace.model.stream_configuration import ScalingPolicy
from headrace.topology import ROUTES
from headrace.topology.kinds import Route

NASTY = [
    ".",
    "..",
    "...",
    "..a",
    "a..",
    "../x",
    "a/..",
    "..%2Fx",
    "%2E%2E",
    "%2e",
    "a?b",
    "a#b",
    "a b",
    "",
    "a//b",
    "ä",
]
# A path with one name that is refused is not sent, and some have four.
SOUND = st.text("abz019-.ä", min_size=1, max_size=6).map(lambda text: f"{text}x")
NAMES = st.sampled_from([True, True, True, False]).flatmap(
    lambda is_sound: (
        SOUND
        if is_sound
        else st.sampled_from([*NASTY, "a", "s/g"]) | st.text("./%?#a-", max_size=6) | st.text(max_size=8)
    )
)
pytestmark = pytest.mark.anyio
PARAMETER = re.compile(r"\{(\w+)\}")


class _SentElsewhere(Exception):
    """The transport raises it, so that no method waits for an answer."""


class Sent:
    """A controller that answers nothing and remembers what arrived."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.runner = asyncio.Runner()  # a client belongs to one event loop
        self.api = HttpApi("http://controller/base", transport=httpx.MockTransport(self._note), retry_s=0)

    def _note(self, request: httpx.Request) -> httpx.Response:
        self.requests.append((request.method, request.url.raw_path.decode().partition("?")[0].removeprefix("/base")))
        raise _SentElsewhere

    def by(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[str, str] | None:
        """The request of a call; None if the call was refused, which must have sent nothing."""
        self.requests.clear()
        try:
            self.runner.run(call())
        except _SentElsewhere:
            (request,) = self.requests
            return request
        except HeadraceError:
            assert not self.requests, "refused, but sent"
            return None
        raise AssertionError("the call neither asked nor refused")


SENT = Sent()
"""Of all tests: to make a client takes longer than an example."""


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_text_reaches_its_route_or_is_refused(route: Route, data: st.DataObject) -> None:
    """The last defence: what the client's methods let through is refused here. Only a slash is theirs to refuse."""
    names = {name: data.draw(NAMES, label=name).replace("/", "%2F") for name in PARAMETER.findall(route.path)}
    request = SENT.by(lambda: SENT.api.request(route.method, route.path.format(**names)))
    if request is not None:
        match = match_route(ROUTES, *request)
        assert match is not None
        assert match.route == route
        assert dict(match.path_parameters) == {name: text.replace("%2F", "/") for name, text in names.items()}


GROUP = ReaderGroupConfiguration((GroupStream("s", "t"),))
VALUES: dict[str, Any] = {
    "scope": "s", "stream": "t", "group": "g", "table": "k", "subscriber": "s/g", "writer": "w",
    "transaction": "0" * 32, "letter": f"{0:013d}-{'0' * 32}", "segment_id": 0, "epoch": 0, "container": 0,
    "lost": [], "version": 0, "copies": 1, "above": 0, "from_offset": 0, "to_offset": 1, "cut": {0: 0}, "time": 1,
    "offsets": {0: 0}, "scaling": ScalingPolicy.fixed(1), "seal": [0], "ranges": [], "segments": [0],
    "transactions": [], "label_prefix": "a", "lease_ms": 1,
}  # fmt: skip
"""Arguments of the methods of administration, by the names of their parameters."""

NAMES_IN_PATHS = ("scope", "stream", "group", "table", "subscriber", "writer", "transaction", "letter")
NEITHER_ASKS = ("delegation_tokens", "trust")
"""Parts of `admin` for connections to the segment stores. Their requests have no names of the caller."""


def _bound(api: HttpApi, method: str) -> Any:
    found: Any = AsyncAdmin(api)
    for part in method.split("."):
        found = getattr(found, part)
    return found


def _methods() -> list[str]:
    admin = AsyncAdmin(SENT.api)
    parts = {"": admin} | {name: part for name, part in vars(admin).items() if name[0] != "_"}
    return [
        f"{part}.{name}".lstrip(".")
        for part, api_part in parts.items()
        if part not in NEITHER_ASKS
        for name, _ in inspect.getmembers(api_part, inspect.ismethod)
        if name[0] != "_"
    ]


METHODS = _methods()


def _names_of(method: str) -> list[str]:
    parameters = inspect.signature(_bound(SENT.api, method)).parameters
    return ["scope", "group"] if "known" in parameters else [name for name in NAMES_IN_PATHS if name in parameters]


def _call(api: HttpApi, method: str, names: dict[str, str]) -> Coroutine[Any, Any, Any]:
    values = VALUES | names
    values["configuration"] = TableConfiguration(1, 8) if method == "tables.create" else GROUP
    values["known"] = ReaderGroupView(
        **ReaderGroupSettings.of(GROUP).fields(),
        scope=values["scope"],
        group=values["group"],
        group_id="0" * 32,
        generation=0,
        state=ReaderGroupState.ACTIVE,
        state_stream="_RGg",
    )
    called = _bound(api, method)
    wanted = inspect.signature(called).parameters.values()
    made: Coroutine[Any, Any, Any] = called(
        **{
            parameter.name: values[parameter.name]
            for parameter in wanted
            if parameter.default is parameter.empty or parameter.name in {*names, "group", "configuration"}
        }
    )
    return made


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_names_reach_the_route_of_the_method(method: str, data: st.DataObject) -> None:
    plain = SENT.by(lambda: _call(SENT.api, method, {}))
    assert plain is not None
    meant = match_route(ROUTES, *plain)
    assert meant is not None
    names = {name: data.draw(st.just(VALUES[name]) | NAMES, label=name) for name in _names_of(method)}
    request = SENT.by(lambda: _call(SENT.api, method, names))
    if request is not None:
        match = match_route(ROUTES, *request)
        assert match is not None
        assert match.route == meant.route
        reached = {name: text.removeprefix("_MARK") for name, text in match.path_parameters.items() if name in names}
        assert reached.items() <= names.items()


@pytest.mark.parametrize("name", [".", ".."])
@pytest.mark.parametrize(("method", "parameter"), [(method, name) for method in METHODS for name in _names_of(method)])
def test_dot_names_are_refused(method: str, parameter: str, name: str) -> None:
    assert SENT.by(lambda: _call(SENT.api, method, {parameter: name})) is None
    if parameter == "subscriber":
        assert SENT.by(lambda: _call(SENT.api, method, {parameter: f"s/{name}"})) is None
        assert SENT.by(lambda: _call(SENT.api, method, {parameter: f"{name}/g"})) is None


async def test_ids_that_are_no_numbers_do_not_lead_elsewhere() -> None:
    admin = AsyncAdmin(SENT.api)
    somehow: Any = "../.."
    with pytest.raises(InvalidRequestError):
        await admin.endpoint("s", "t", somehow)

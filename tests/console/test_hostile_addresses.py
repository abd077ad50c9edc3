"""No address and no form makes the console fail: what cannot be meant is refused with a page that says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from headrace.client import Headrace, ScalingPolicy
from headrace.console import live_views
from headrace.console.change_pages import ChangePages
from headrace.console.other_pages import OtherPages
from headrace.console.server import ConsoleServer
from headrace.console.stream_pages import StreamPages

NUMBERS = ("0", "-1", "1", "3", "NaN", "1e999", "٣", "9223372036854775807", "9223372036854775808", "9" * 400)
SEGMENTS = (
    "0@0",
    "2@1",
    "9@9",
    "0@2147483647",
    "0@2147483648",
    "1@",
    "@1",
    "-1@0",
    "9223372036854775807",
    "4294967298",
)
PLACES = (
    "yesterday",
    "-0s",
    "-999999d",
    "99:99",
    "0001-01-01",
    "9999-12-31T23:59:59-14:00",
    "2026-02-30",
    "0@0:0,1@0:0",  # truncated
    "2@1:3,3@1:3,1@0:3",  # inside events
    "2@1:11,3@1:11,1@0:-1",
    "4@2:9223372036854775807,2@1:0",  # after the tail
    "4@2:-1,2@1:-1",
    "2@1:-2",
    "0@2147483647:0",
    "9@9:0,8@8:1",
    "2@1:0",  # a part of the key space
    "2@1:0,2@1:1",
    ":",
    "H4sIAAAAAAAA",
)
TEXTS = ("", " ", "%ff%fe", "%00", "%ed%a0%80", "%E2%80%A8", "..", "/", "<script>alert(1)</script>", "k" * 501)
VALUES = tuple(quote(value, safe="%:,@-") for value in (*NUMBERS, *SEGMENTS, *PLACES, *TEXTS))

PARAMETERS = {
    "/": (),
    "/streams": ("scope", "page"),
    "/groups": ("scope", "page"),
    "/groups/{scope}/{name}": (),
    "/groups/{scope}/{name}/reset": ("to", "cut"),
    "/tables": ("scope", "page"),
    "/tables/{scope}/{name}": ("after",),
    "/cluster": (),
    "/dead-letters": ("after",),
    "/dead-letters/{letter}/replay": (),
    "/dead-letters/{letter}/drop": (),
    "/streams/{scope}/{name}": ("from", "segment", "key", "filter", "until", "epochs"),
    "/streams/{scope}/{name}/header": (),
    "/streams/{scope}/{name}/map": ("from", "segment", "key", "until", "epochs"),
    "/streams/{scope}/{name}/groups": (),
    "/streams/{scope}/{name}/open-transactions": (),
    "/streams/{scope}/{name}/retention": (),
    "/streams/{scope}/{name}/cut": ("from",),
    "/streams/{scope}/{name}/live": ("from", "segment", "filter"),
    "/streams/{scope}/{name}/event": ("segment", "offset", "length"),
    "/streams/{scope}/{name}/transactions": (),
    "/streams/{scope}/{name}/split": ("segment", "at"),
    "/streams/{scope}/{name}/merge": ("segments",),
    "/live/{view}": (),
    "/live/{view}/paused": (),
    "/live/{view}/resumed": (),
}
"""Of each route: the parameters of its address, or the fields of its form."""

GOOD = {"segment": "2@1", "offset": "0", "length": "20", "from": "earliest", "scope": "shop"}
NAMES = {"streams": ("orders", "ended", "gone", "none"), "groups": ("slow", "none"), "tables": ("prices", "none")}
HOSTILE_NAMES = ("%ff", "%00", "..%2f", "%2e%2e", "k" * 300, "%3Cscript%3E", "_", "-1")


@pytest.fixture(scope="module")
def hostile(client: Headrace, changing: ConsoleServer) -> Iterator[httpx.Client]:
    """A browser that came with the token. `shop/ended` is sealed, and `shop/gone` was deleted."""
    for name in ("ended", "gone"):
        client.admin.create_stream("shop", name, scaling=ScalingPolicy.fixed(1))
        client.admin.seal_stream("shop", name)
    client.admin.delete_stream("shop", "gone")
    base = f"http://127.0.0.1:{changing.port}"
    with pytest.MonkeyPatch.context() as patch, httpx.Client(base_url=base, timeout=60) as opened:
        patch.setattr(live_views, "IDLE_S", 0.0)  # each view makes room for the next one
        assert opened.get(f"/?{urlsplit(changing.address).query}").status_code == 303
        yield opened


def wrong(browser: httpx.Client, path: str, form: str | None = None) -> list[str]:
    """What is wrong with the answer to an address or a form, and of the live view that it opened."""
    if form is None:
        answer = browser.get(path)
    else:
        headers = {"origin": str(browser.base_url).rstrip("/"), "content-type": "application/x-www-form-urlencoded"}
        answer = browser.post(path, content=form, headers=headers)
    text = answer.text
    found = [f"{path} {form or ''}: {answer.status_code} {text[-600:]}"] if answer.status_code >= 500 else []
    if "Traceback" in text or "<script>alert" in text or (answer.status_code >= 400 and "<h1>" not in text):
        found.append(f"{path} {form or ''}: {text}")
    view = re.search(r'hx-get="(/live/[0-9a-f]+)"', text)
    return found + (wrong(browser, view[1]) if view else [])


def all_routes() -> dict[str, set[str]]:
    """The methods of each route."""
    console: Any = None  # it is asked for only by the handlers
    routes: dict[str, set[str]] = {}
    for pages in (OtherPages(console), StreamPages(console), ChangePages(console)):
        for route in pages.routes():
            routes.setdefault(route.path, set()).update(route.methods or ())
    return routes


def test_each_route_is_tried():
    assert all_routes().keys() == PARAMETERS.keys()


@pytest.mark.parametrize("path", PARAMETERS)
def test_hostile_parameters_are_refused(hostile: httpx.Client, path: str):
    methods, found = all_routes()[path], []
    for name in NAMES.get(path.split("/")[1], ("none",)):
        address = path.format(scope="shop", name=name, view="none", letter="none")
        for parameter in PARAMETERS[path] or ("unknown",):
            for value in VALUES if PARAMETERS[path] else VALUES[-3:]:
                others = [f"{each}={GOOD[each]}" for each in PARAMETERS[path] if each in GOOD and each != parameter]
                query = "&".join([*others, f"{parameter}={value}"])
                found += wrong(hostile, f"{address}?{query}") if "GET" in methods else []
                found += wrong(hostile, address, query) if "POST" in methods else []
    assert found == []


@pytest.mark.parametrize("path", [path for path in PARAMETERS if "{" in path])
def test_hostile_names_are_refused(hostile: httpx.Client, path: str):
    methods, found = all_routes()[path], []
    for name in HOSTILE_NAMES:
        for scope, own in ((name, "orders"), ("shop", name)):
            address = path.format(scope=scope, name=own, view=name, letter=name)
            found += wrong(hostile, address) if "GET" in methods else []
            found += wrong(hostile, address, "segment=2@1&segments=2@1&cut=x") if "POST" in methods else []
    assert found == []

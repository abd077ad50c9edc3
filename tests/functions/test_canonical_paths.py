"""A path has one form. Any other is refused for every route before a name in it is used."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from functions_in_memory import AuditLines, FunctionWorld, handler_of
from hypothesis import given
from hypothesis import strategies as st
from lambda_context import FunctionContext

from functions.canonical_paths import PATH_NOT_CANONICAL, canonical_event
from headrace.model.errors import InvalidRequestError
from headrace.topology import ROUTES, Route, function

NAMES = {
    "subscriber": "shop/g",
    "container": "1",
    "segment": "0",
    "epoch": "0",
    "transaction": "0123456789abcdef0123456789abcdef",
    "letter": f"{0:013d}-{'0' * 32}",
}


def _values(route: Route) -> dict[str, str]:
    return {name: NAMES.get(name, "orders") for name in re.findall(r"{([^}]*)}", route.path)}


def _event(route: Route, raw_path: str, values: dict[str, str]) -> dict[str, Any]:
    return {
        "version": "2.0",
        "routeKey": route.key,
        "pathParameters": values,
        "rawPath": raw_path,
        "rawQueryString": "",
        "headers": {},
        "requestContext": {"http": {"method": route.method, "path": raw_path}, "stage": "$default"},
        "isBase64Encoded": False,
    }


def _path(route: Route, values: dict[str, str], slash: str = "%2F") -> str:
    path = route.path
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value.replace("/", slash))
    return path


CHANGES = {
    "a character as an escape": lambda path: path.replace("orders", "%6Frders").replace("v1", "%76%31", 1),
    "an escaped escape": lambda path: path.replace("orders", "%256Frders").replace("v1", "%2576%31", 1),
    "an empty part": lambda path: path.replace("/v1/", "/v1//"),
    "a slash at the end": lambda path: f"{path}/",
    "a dot": lambda path: path.replace("/v1/", "/v1/./"),
    "two dots": lambda path: path.replace("/v1/", "/v1/x/../"),
    "escaped dots": lambda path: path.replace("/v1/", "/v1/x/%2E%2e/"),
    "a slash within a name": lambda path: path.replace("/v1/", "/v1%2F"),
    "another case": lambda path: path.replace("/v1/", "/V1/"),
    "a stage before it": lambda path: f"/prod{path}",
    "another name": lambda path: f"{path}x",
    "a NUL": lambda path: f"{path}\0",
    "nothing": lambda path: "",
    "no slash at the beginning": lambda path: f"x{path}",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.key)
def test_a9_a_path_of_another_form_is_refused(
    world: FunctionWorld, context: FunctionContext, route: Route, change: str
):
    values = _values(route)
    before, path = world.contents(), CHANGES[change](_path(route, values))
    assert path != _path(route, values)
    answer = handler_of(function(route.function))(_event(route, path, values), context)
    assert answer["statusCode"] == 400
    assert json.loads(answer["body"])["error"]["code"] == PATH_NOT_CANONICAL
    assert world.contents() == before


@pytest.mark.parametrize("value", ["a/b", "", ".", "..", "%73", "a b", "\u00e9", "a\nb"])
@pytest.mark.parametrize("route", [route for route in ROUTES if "{scope}" in route.path], ids=lambda route: route.key)
def test_a9_a_name_of_another_form_is_refused(route: Route, value: str):
    """Even if the gateway has decoded the path, so that it matches the parameters."""
    values = _values(route) | {"scope": value}
    for path in (_path(route, values), _path(route, values, slash="/")):
        with pytest.raises(InvalidRequestError) as refused:
            canonical_event(_event(route, path, values))
        assert refused.value.specific_code == PATH_NOT_CANONICAL


@pytest.mark.parametrize("slash", ["%2F", "/"])
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.key)
def test_a9_the_canonical_path_is_accepted(route: Route, slash: str):
    """Whether the gateway has decoded it or not: the handler gets the same path."""
    values = _values(route)
    found = canonical_event(_event(route, _path(route, values, slash), values))
    assert found["rawPath"] == _path(route, values)


def test_parameters_that_are_not_decoded_are_accepted():
    (route,) = [route for route in ROUTES if route.key.startswith("GET") and route.path.endswith("/{subscriber}")]
    path = _path(route, _values(route))
    assert canonical_event(_event(route, path, _values(route) | {"subscriber": "shop%2Fg"}))["rawPath"] == path
    with pytest.raises(InvalidRequestError):
        canonical_event(_event(route, path, _values(route) | {"subscriber": "shop%252Fg"}))


@pytest.mark.parametrize("path", ["/v1/scopes/{}", "/v1/scopes/a/{}", "{}"])
@pytest.mark.parametrize("text", ["\ud800", "a\udcff", "%ED%A0%80", "%FF"])
def test_a_path_that_is_not_unicode_is_refused(
    world: FunctionWorld, context: FunctionContext, audit_lines: AuditLines, path: str, text: str
):
    """JSON can have halves of characters. No name is encoded for them."""
    (route,) = [route for route in ROUTES if route.key == "GET /v1/scopes/{scope}"]
    answer = handler_of(function(route.function))(_event(route, path.format(text), {"scope": text}), context)
    assert (answer["statusCode"], json.loads(answer["body"])["error"]["code"]) == (400, PATH_NOT_CANONICAL)
    (line,) = audit_lines()
    assert (line["code"], line["details"]["path"]) == (PATH_NOT_CANONICAL, path.format(text))


def test_a_lower_case_escape_is_refused():
    (route,) = [route for route in ROUTES if route.key.startswith("GET") and route.path.endswith("/{subscriber}")]
    with pytest.raises(InvalidRequestError):
        canonical_event(_event(route, _path(route, _values(route), slash="%2f"), _values(route)))


@given(text=st.text(max_size=12), name=st.text(max_size=8))
def test_no_two_paths_are_the_same_request(text: str, name: str):
    """Of all paths for a name, only the name as it is goes through."""
    (route,) = [route for route in ROUTES if route.key == "GET /v1/scopes/{scope}"]
    try:
        canonical_event(_event(route, f"/v1/scopes/{text}", {"scope": name}))
    except InvalidRequestError:
        return
    assert text == name
    assert not set(name) & set("/%")

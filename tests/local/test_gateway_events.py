"""Payload format 2.0, both ways."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.local.gateway_events import HttpRequest, RouteMatch, match_route, request_event, response_of
from headrace.topology import ROUTES, Route
from headrace.topology.kinds import Access

MATCH = RouteMatch(Route("POST", "/v1/scopes/{scope}", "scopes", Access.MANAGE), {"scope": "a/b"})


def request(**changes: object) -> HttpRequest:
    values: dict[str, object] = {
        "method": "POST",
        "target": "/v1/scopes/a%2Fb?limit=1&x=a%20b&limit=2&empty=",
        "headers": (("Host", "h:1"), ("Accept", "a"), ("accept", "b"), ("Cookie", "x=1; y=2"), ("User-Agent", "u")),
        "body": b"",
        "source_ip": "127.0.0.1",
        "protocol": "HTTP/1.1",
    }
    return HttpRequest(**(values | changes))  # type: ignore[arg-type]


def test_an_event_has_what_api_gateway_sends():
    event = request_event(request(), MATCH, "r-1", 5)
    assert event["version"] == "2.0"
    assert event["routeKey"] == "POST /v1/scopes/{scope}"
    assert event["rawPath"] == "/v1/scopes/a%2Fb"
    assert event["rawQueryString"] == "limit=1&x=a%20b&limit=2&empty="
    assert event["queryStringParameters"] == {"limit": "1,2", "x": "a b", "empty": ""}
    assert event["headers"] == {"host": "h:1", "accept": "a,b", "user-agent": "u"}
    assert event["cookies"] == ["x=1", "y=2"]
    assert event["pathParameters"] == {"scope": "a/b"}
    assert event["requestContext"]["http"] == {
        "method": "POST",
        "path": "/v1/scopes/a%2Fb",
        "protocol": "HTTP/1.1",
        "sourceIp": "127.0.0.1",
        "userAgent": "u",
    }
    assert event["requestContext"]["timeEpoch"] == 5
    assert event["isBase64Encoded"] is False


def test_what_is_absent_is_left_out():
    event = request_event(request(target="/v1/scopes", headers=()), RouteMatch(ROUTES[0], {}), "r-1", 5)
    assert not {"body", "cookies", "queryStringParameters", "pathParameters"} & set(event)


@given(body=st.binary(min_size=1), kind=st.sampled_from(["application/json", "text/plain", "", "image/png"]))
def test_a_body_arrives_as_it_was(body: bytes, kind: str):
    event = request_event(request(body=body, headers=(("content-type", kind),)), MATCH, "r", 0)
    carried = base64.b64decode(event["body"]) if event["isBase64Encoded"] else event["body"].encode()
    assert carried == body


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_each_declared_route_is_found(route: Route):
    path = route.path.replace("{", "some-").replace("}", "")
    match = match_route(ROUTES, route.method, path)
    assert match is not None
    assert match.route == route
    assert all(value == f"some-{name}" for name, value in match.path_parameters.items())


def test_literal_parts_win_over_parameters():
    match = match_route(ROUTES, "POST", "/v1/scopes/s/streams/t/segments/between")
    assert match is not None
    assert match.route.path.endswith("/between")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", ""),
        ("GET", "/v1"),
        ("GET", "/v1/scopes/"),
        ("GET", "/v1/scopes//streams"),
        ("PATCH", "/v1/scopes"),
        ("GET", "/v1/scopes/s/streams/t/segments/0/successors/x"),
        ("GET", "//v1/scopes"),
    ],
)
def test_anything_else_is_no_route(method: str, path: str):
    assert match_route(ROUTES, method, path) is None


@given(path=st.text())
def test_no_path_breaks_the_router(path: str):
    match = match_route(ROUTES, "GET", path)
    assert match is None or all(match.path_parameters.values())


def test_a_response_with_headers_and_cookies():
    result = {"statusCode": 201, "headers": {"A": "b"}, "cookies": ["x=1"], "body": "ü"}
    response = response_of(result)
    assert (response.status, response.headers, response.body) == (
        201,
        (("A", "b"), ("set-cookie", "x=1")),
        "ü".encode(),
    )


@pytest.mark.parametrize("result", [{"a": 1}, [1], "text", None])
def test_what_has_no_status_is_the_body_of_a_200(result: object):
    response = response_of(result)
    assert response.status == 200
    assert response.headers == (("content-type", "application/json"),)


@given(body=st.binary())
def test_a_binary_body_is_decoded(body: bytes):
    result = {"statusCode": 200, "body": base64.b64encode(body).decode(), "isBase64Encoded": True}
    assert response_of(result).body == body


@pytest.mark.parametrize(
    "result",
    [
        {"statusCode": "many"},
        {"statusCode": 99},
        {"statusCode": 200, "body": {"not": "text"}},
        {"statusCode": 200, "body": "%", "isBase64Encoded": True},
    ],
)
def test_a_malformed_result_is_refused(result: object):
    with pytest.raises(ValueError):
        response_of(result)

"""The gateway over real sockets, with made-up functions behind the declared routes."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.gateway_events import HttpRequest, RouteMatch, match_route, request_event, response_of
from headrace.adapters.system_clock import SystemClock
from headrace.local import http_gateway
from headrace.local.failures import LocalStackError
from headrace.local.http_gateway import HttpGateway
from headrace.local.lambda_host import HandlerFailedError
from headrace.topology import ROUTES, Route
from headrace.topology.kinds import Access


class FakeHost:
    """Answers with what it got; fails and blocks on demand."""

    def __init__(self) -> None:
        self.gate = threading.Barrier(2, timeout=30)

    def invoke(self, name: str, event: dict[str, Any]) -> Any:
        path = event["rawPath"]
        if path.endswith("/fails"):
            raise HandlerFailedError("boom")
        if path.endswith("/malformed"):
            return {"statusCode": "x"}
        if path.endswith("/meet"):
            self.gate.wait()
        if path.endswith("/gone"):
            return {"statusCode": 204, "body": ""}
        return {"statusCode": 200, "headers": {"x-function": name}, "body": json.dumps(event)}


@pytest.fixture
def gateway() -> Iterator[HttpGateway]:
    made = HttpGateway(SystemClock())
    made.serve(FakeHost())  # type: ignore[arg-type]
    yield made
    made.stop()


@pytest.fixture
def connection(gateway: HttpGateway) -> Iterator[http.client.HTTPConnection]:
    made = http.client.HTTPConnection("127.0.0.1", int(gateway.url.rpartition(":")[2]), timeout=30)
    yield made
    made.close()


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str) -> Any:
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response, response.read()


def test_a_request_reaches_the_declared_function(connection: http.client.HTTPConnection):
    response, body = ask(
        connection, "POST", "/v1/scopes/s/streams?x=1", b'{"a":1}', **{"content-type": "application/json"}
    )
    assert (response.status, response.headers["x-function"]) == (200, "streams")
    event = json.loads(body)
    assert (event["body"], event["queryStringParameters"]) == ('{"a":1}', {"x": "1"})


def test_a_connection_serves_many_requests(connection: http.client.HTTPConnection):
    for _ in range(5):
        assert ask(connection, "GET", "/v1/scopes")[0].status == 200
        assert ask(connection, "GET", "/v1/scopes/gone")[0].status == 204


def test_two_requests_are_served_at_once(gateway: HttpGateway):
    port = int(gateway.url.rpartition(":")[2])
    statuses: list[int] = []

    def run() -> None:
        own = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        statuses.append(ask(own, "GET", "/v1/scopes/meet")[0].status)
        own.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200, 200]


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/", 404, "Not Found"),
        ("GET", "/v2/scopes", 404, "Not Found"),
        ("PATCH", "/v1/scopes", 404, "Not Found"),
        ("OPTIONS", "/v1/scopes", 404, "Not Found"),
        ("GET", "/v1/scopes/fails", 500, "Internal Server Error"),
        ("GET", "/v1/scopes/malformed", 500, "Internal Server Error"),
    ],
)
def test_what_the_gateway_says_itself(
    connection: http.client.HTTPConnection, method: str, path: str, status: int, message: str
):
    response, body = ask(connection, method, path)
    assert (response.status, json.loads(body)) == (status, {"message": message})
    assert ask(connection, "GET", "/v1/scopes")[0].status == 200


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "attacker.example:10080"},
        {"host": "127.0.0.1.attacker.example"},
        {"host": "localhost@attacker.example"},
        {"host": ""},
        {"origin": "http://attacker.example"},
        {"origin": "https://127.0.0.1"},
        {"origin": "null"},
    ],
    ids=str,
)
def test_page_of_another_site_is_refused(connection: http.client.HTTPConnection, method: str, headers: dict[str, str]):
    assert ask(connection, method, "/v1/scopes", b"{}", **headers)[0].status == 403
    assert ask(connection, "GET", "/v1/scopes")[0].status == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8080", "LOCALHOST", "[::1]:10080", "[::1]"])
def test_own_names_and_origins_are_served(connection: http.client.HTTPConnection, host: str):
    assert ask(connection, "GET", "/v1/scopes", host=host)[0].status == 200
    assert ask(connection, "POST", "/v1/scopes", b"{}", host=host, origin=f"http://{host}")[0].status == 200


def test_a_body_above_the_limit_is_answered_413(
    connection: http.client.HTTPConnection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http_gateway, "BODY_BYTES_MAX", 1000)
    assert ask(connection, "POST", "/v1/scopes", b"x" * 1000)[0].status == 200
    assert ask(connection, "POST", "/v1/scopes", b"x" * 1001)[0].status == 413
    assert ask(connection, "GET", "/v1/scopes")[0].status == 200


def test_a_body_in_chunks(connection: http.client.HTTPConnection, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_gateway, "BODY_BYTES_MAX", 1000)
    response, body = ask(connection, "POST", "/v1/scopes", iter([b'{"a":', b"1}"]), **{"content-type": "text/plain"})
    assert (response.status, json.loads(body)["body"]) == (200, '{"a":1}')
    assert ask(connection, "POST", "/v1/scopes", iter([b"x" * 600, b"x" * 600]))[0].status == 413


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"\x00\xff\x16\x03\x01\r\n\r\n",
        b"POST /v1/scopes HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /v1/scopes HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/scopes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/scopes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"GET /v1/" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_get_a_4xx_and_harm_nobody(
    gateway: HttpGateway, connection: http.client.HTTPConnection, request_bytes: bytes
):
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])), timeout=30) as raw:
        raw.sendall(request_bytes)
        raw.shutdown(socket.SHUT_WR)
        answer = b""
        while part := raw.recv(4096):
            answer += part
    assert b" 4" in answer.splitlines()[0] or b"Error code: 4" in answer
    assert ask(connection, "GET", "/v1/scopes")[0].status == 200


def test_a_client_that_hangs_up_harms_nobody(gateway: HttpGateway, connection: http.client.HTTPConnection):
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])), timeout=30) as raw:
        raw.sendall(b"POST /v1/scopes HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf")
    assert ask(connection, "GET", "/v1/scopes")[0].status == 200


def test_a_taken_port_is_one_clear_error(gateway: HttpGateway):
    port = int(gateway.url.rpartition(":")[2])
    with pytest.raises(LocalStackError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use") as raised:
        HttpGateway(SystemClock(), port)
    assert raised.value.exit_code == 2


def test_before_it_serves_it_says_so():
    made = HttpGateway(SystemClock())
    request = HttpRequest("GET", "/v1/scopes", (), b"", "127.0.0.1", "HTTP/1.1")
    assert made.answer(request).status == 503
    made.stop()


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


PATH_PARTS = sorted({part for route in ROUTES for part in route.path.split("/")})


@given(
    path=st.text()
    | st.sampled_from(ROUTES).flatmap(
        lambda route: st.tuples(
            *[st.text(max_size=3) if part.startswith("{") else st.just(part) for part in route.path.split("/")]
        ).map("/".join)
    )
    | st.lists(st.sampled_from(PATH_PARTS) | st.text(max_size=3)).map("/".join)
)
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

"""The shared HTTP layer: bodies, internal errors, concurrent requests."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest
from lambda_context import FunctionContext

from functions.http_api import REQUEST_BODY_BYTES_MAX, http_api, lambda_handler

pytestmark = pytest.mark.usefixtures("world")


def event(method: str, path: str, **more: Any) -> dict[str, Any]:
    return {
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {},
        "requestContext": {"http": {"method": method, "path": path}, "stage": "$default"},
        "isBase64Encoded": False,
        **more,
    }


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")


def test_unexpected_exception_is_answered_without_its_text(context: FunctionContext):
    api = http_api()

    @api.get("/fails")
    def fails() -> dict[str, str]:
        raise RuntimeError("password=hunter2")

    answer = lambda_handler(api)(event("GET", "/fails"), context)
    assert answer["statusCode"] == 500
    assert json.loads(answer["body"])["error"]["code"] == "internal"
    assert "hunter2" not in answer["body"]


def test_invalid_response_is_an_internal_error(context: FunctionContext):
    api = http_api()

    @api.get("/wrong")
    def wrong() -> list[int]:
        return ["x"]  # type: ignore[list-item]

    assert lambda_handler(api)(event("GET", "/wrong"), context)["statusCode"] == 500


def test_unknown_route_has_the_error_shape_of_the_api(context: FunctionContext):
    answer = lambda_handler(http_api())(event("GET", "/nowhere"), context)
    assert answer["statusCode"] == 404
    assert json.loads(answer["body"])["error"]["code"] == "no_such_route"


def _echo() -> Any:
    api = http_api()

    @api.post("/echo")
    def echo(body: dict[str, Any]) -> dict[str, Any]:
        return body

    return lambda_handler(api)


def test_a_body_in_base64_is_decoded(context: FunctionContext):
    body = base64.b64encode(b'{"a": 1}').decode()
    answer = _echo()(event("POST", "/echo", body=body, isBase64Encoded=True), context)
    assert json.loads(answer["body"]) == {"a": 1}


@pytest.mark.parametrize("body", [b"\xff\xfe", b'{"a": "\xc3"}'])
def test_body_that_is_not_utf8_is_refused(context: FunctionContext, body: bytes):
    answer = _echo()(event("POST", "/echo", body=base64.b64encode(body).decode(), isBase64Encoded=True), context)
    assert answer["statusCode"] == 400


@pytest.mark.parametrize("encoded", [True, False])
def test_the_limit_of_a_body_is_exact(context: FunctionContext, encoded: bool):
    for size, status in ((REQUEST_BODY_BYTES_MAX, 200), (REQUEST_BODY_BYTES_MAX + 1, 413)):
        text = json.dumps({"a": ""})
        text = text.replace('""', '"' + "x" * (size - len(text)) + '"')
        assert len(text) == size
        body = base64.b64encode(text.encode()).decode() if encoded else text
        answer = _echo()(event("POST", "/echo", body=body, isBase64Encoded=encoded), context)
        assert answer["statusCode"] == status


def test_requests_at_the_same_time_do_not_see_each_other(context: FunctionContext):
    api = http_api()
    both_inside = threading.Barrier(2, timeout=30)

    @api.get("/who/<name>")
    def who(name: str) -> dict[str, str]:
        both_inside.wait()
        return {"name": name, "path": api.current_event.raw_event["rawPath"]}

    handler = lambda_handler(api)
    answers: dict[str, Any] = {}

    def ask(name: str) -> None:
        answers[name] = json.loads(handler(event("GET", f"/who/{name}"), context)["body"])

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == {name: {"name": name, "path": f"/who/{name}"} for name in ("a", "b")}

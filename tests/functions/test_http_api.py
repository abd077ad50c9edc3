"""The shared HTTP layer: bodies, internal errors, concurrent requests."""

from __future__ import annotations

import base64
import json
import threading
from typing import Annotated, Any, Literal

import pytest
from lambda_context import FunctionContext
from msgspec import Meta

from functions.http_api import REQUEST_BODY_BYTES_MAX, HttpApi, lambda_handler
from functions.operations import PathParameter, QueryParameter
from headrace.model.documents import Document, about
from headrace.model.errors import InvalidRequestError

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
    api = HttpApi()

    @api.route("GET", "/fails", summary="fails", tag="t")
    def fails() -> None:
        raise RuntimeError("password=hunter2")

    answer = lambda_handler(api)(event("GET", "/fails"), context)
    assert answer["statusCode"] == 500
    assert json.loads(answer["body"])["error"]["code"] == "internal"
    assert "hunter2" not in answer["body"]


def test_unknown_route_has_the_error_shape_of_the_api(context: FunctionContext):
    answer = lambda_handler(HttpApi())(event("GET", "/nowhere"), context)
    assert answer["statusCode"] == 404
    assert json.loads(answer["body"])["error"]["code"] == "no_such_route"


class Inner(Document, frozen=True):
    kind: Literal["x", "y"]


class Echo(Document, frozen=True):
    a: str | int
    limit_ms: Annotated[int, about("Milliseconds")] = 7
    inner: tuple[Inner, ...] = ()


def _echo() -> Any:
    api = HttpApi()

    @api.route("POST", "/echo", summary="echo", tag="t")
    def echo(body: Echo) -> Echo:
        return body

    return lambda_handler(api)


def test_a_body_in_base64_is_decoded(context: FunctionContext):
    body = base64.b64encode(b'{"a": 1}').decode()
    answer = _echo()(event("POST", "/echo", body=body, isBase64Encoded=True), context)
    assert json.loads(answer["body"]) == {"a": 1, "limit": 7, "inner": []}


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


class Who(Document, frozen=True):
    name: str
    caller: str


def test_requests_at_the_same_time_do_not_see_each_other(context: FunctionContext):
    api = HttpApi()
    both_inside = threading.Barrier(2, timeout=30)

    @api.route("GET", "/who/<name>", summary="who", tag="t")
    def who(name: Annotated[str, PathParameter("A name", str)]) -> Who:
        both_inside.wait()
        return Who(name, api.caller)

    handler = lambda_handler(api)
    answers: dict[str, Any] = {}

    def ask(name: str) -> None:
        asked = event("GET", f"/who/{name}")
        asked["requestContext"]["authorizer"] = {"iam": {"userArn": f"arn:{name}"}}
        answers[name] = json.loads(handler(asked, context)["body"])

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == {name: {"name": name, "caller": f"arn:{name}"} for name in ("a", "b")}


PROBLEMS = {
    '{"a": null}': ("body.a", "expected int | str, got null"),
    "{}": ("body.a", "is missing"),
    '{"a": 1, "limit_ms": 3}': ("body.limit_ms", "is unknown"),
    '{"a": 1, "limit": "hunter2"}': ("body.limit", "expected int, got str"),
    '{"a": 1, "limit": 2.0}': ("body.limit", "expected int, got float"),
    '{"a": 1, "inner": [{"kind": "x"}, {"kind": "hunter2"}]}': ("body.inner.1.kind", "must be x or y"),
    '{"a": 1, "inner": [{"kind": "x", "more": 1}]}': ("body.inner.0.more", "is unknown"),
    '{"a": 1, "inner": [{}]}': ("body.inner.0.kind", "is missing"),
    "[]": ("body", "expected object, got array"),
    "null": ("body", "is missing"),
}


@pytest.mark.parametrize(("body", "problem"), PROBLEMS.items(), ids=PROBLEMS)
def test_mistake_in_a_body_is_named_without_its_value(context: FunctionContext, body: str, problem: tuple[str, str]):
    answer = _echo()(event("POST", "/echo", body=body), context)
    error = json.loads(answer["body"])["error"]
    assert (answer["statusCode"], error["code"]) == (400, "invalid_request")
    assert [(mistake["field"], mistake["problem"]) for mistake in error["details"]["problems"]] == [problem]
    assert problem[0] in error["message"]
    assert "hunter2" not in answer["body"]


def test_all_unknown_fields_are_named_up_to_a_limit(context: FunctionContext):
    body = json.dumps({"a": 1} | {f"f{number}": 1 for number in range(12)})
    error = json.loads(_echo()(event("POST", "/echo", body=body), context)["body"])["error"]
    assert [mistake["field"] for mistake in error["details"]["problems"]] == [f"body.f{number}" for number in range(10)]
    assert error["message"].endswith("and 2 more")


class Asked(Document, frozen=True):
    number: int
    limit: int
    flag: bool
    text: str | None


def even(text: str) -> int:
    if int(text) % 2:
        raise InvalidRequestError("odd", code="odd")
    return int(text)


def _asking() -> Any:
    api = HttpApi()

    @api.route("GET", "/ask/<number>", summary="ask", tag="t")
    def ask(
        number: Annotated[int, PathParameter("An even number", even)],
        limit: Annotated[int, Meta(ge=1, le=9), QueryParameter("At most")],
        flag: Annotated[bool, QueryParameter("A flag", name="aFlag")] = False,
        text: Annotated[Annotated[str, Meta(max_length=3)] | None, QueryParameter("A text")] = None,
    ) -> Asked | None:
        return Asked(number, limit, flag, text) if limit < 9 else None

    return lambda_handler(api)


@pytest.mark.parametrize(
    ("path", "query", "status", "answer"),
    [
        ("/ask/2", {"limit": "3"}, 200, {"number": 2, "limit": 3, "flag": False, "text": None}),
        ("/ask/4", {"limit": "1", "aFlag": "true", "text": "a,b"}, 200, None),
        ("/ask/2", {"limit": "9"}, 204, None),
        ("/ask/3", {"limit": "3"}, 400, "odd"),
        ("/ask/2", {}, 400, "query.limit"),
        ("/ask/2", {"limit": "10"}, 400, "query.limit"),
        ("/ask/2", {"limit": "1,2"}, 400, "query.limit"),
        ("/ask/2", {"limit": " 1"}, 400, "query.limit"),
        ("/ask/2", {"limit": "3", "aFlag": "maybe"}, 400, "query.aFlag"),
        ("/ask/2", {"limit": "3", "text": "long"}, 400, "query.text"),
    ],
)
def test_parameters_become_the_declared_types(
    context: FunctionContext, path: str, query: dict[str, str], status: int, answer: Any
):
    found = _asking()(event("GET", path, queryStringParameters=query), context)
    assert found["statusCode"] == status
    if isinstance(answer, dict):
        assert json.loads(found["body"]) == answer
    elif answer is not None:
        assert answer in found["body"]

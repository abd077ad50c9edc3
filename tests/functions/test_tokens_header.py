"""Every answer of the API says whether the segment stores want delegation tokens."""

from __future__ import annotations

import pytest
from functions_in_memory import Call, handler_of, serving_function
from lambda_context import FunctionContext

from headrace.api.response_headers import TOKENS, TOKENS_REQUIRED


@pytest.mark.parametrize(("variable", "header"), [("", None), ("off", None), ("required", TOKENS_REQUIRED)])
def test_answers_say_whether_tokens_are_wanted(
    call: Call, context: FunctionContext, monkeypatch: pytest.MonkeyPatch, variable: str, header: str | None
) -> None:
    monkeypatch.setenv("HEADRACE_TOKENS", variable)
    for path, status in (("/v1/scopes", 200), ("/v1/scopes/missing", 404)):
        answer = call("GET", path)
        assert (answer.status, answer.headers.get(TOKENS)) == (status, header)
    event = {"requestContext": {"http": {"method": "POST", "path": "/v1/scopes"}}, "body": "no JSON"}
    answer = handler_of(serving_function("POST", "/v1/scopes"))(event, context)
    assert (answer["statusCode"], answer["headers"].get(TOKENS)) == (400, header)

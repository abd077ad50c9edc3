"""Every endpoint, fuzzed from the API's document over the real handlers.

Whatever comes, there is no fault of ours, a refusal changes nothing, and each answer fits the document. Requests are
right, wrong, or nearly right: a good one with one value replaced, since chance alone never gets past the first check.
Examples are the same in every run; a failure prints the request as a call of curl.
"""

from __future__ import annotations

import copy
import json
from typing import Any, cast

import httpx
import pytest
import schemathesis
from api_in_memory import ApiInMemory
from fuzz_world import FuzzWorld, GoodBodies
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS
from schemathesis.core.result import Ok

from functions.openapi import DOCUMENT

EXAMPLES = 12
BASE = "http://api"
SCHEMA = schemathesis.openapi.from_dict(json.loads(DOCUMENT.read_text()))
ANSWER_CHECKS: Any = CHECKS.get_by_names(  # They are known once a document is loaded.
    ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
)
OPERATIONS = {
    operation.label: operation for operation in (cast("Ok[Any]", found).ok() for found in SCHEMA.get_all_operations())
}

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 65), 1 << 65)
    | st.sampled_from([-1, 0, 1, 2, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, 0.5, 1.0])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=300)
    | st.sampled_from(["s", "active", "_system", "a/b", "", "0", "01", "-1", "\ud800"])
)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a value of a JSON document can be replaced."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for name, part in inner for found in _paths(part, (*path, name)))]


def _with(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(document)
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return changed


@st.composite
def _requests(draw: st.DrawFn, operation: Any, names: dict[str, list[str]], good: list[Any]) -> Case[Any]:
    case: Case[Any] = draw(
        st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]).flatmap(
            lambda mode: operation.as_strategy(generation_mode=mode)
        )
    )
    if draw(st.integers(0, 3)):
        known = {
            name: draw(st.sampled_from(names[name])) if name in names else value
            for name, value in (case.path_parameters or {}).items()
        }
        case.path_parameters = known
    sends_good_body: bool = bool(good) and draw(st.integers(0, 3)) > 0
    if sends_good_body:
        body = draw(st.sampled_from(good))
        if draw(st.booleans()):
            body = _with(body, draw(st.sampled_from(_paths(body))), draw(_VALUES))
        case.body = body
        case.media_type = "application/json"
    return case


def _send(api: ApiInMemory, case: Case[Any]) -> httpx.Response:
    wanted = case.as_transport_kwargs(base_url=BASE)
    content = wanted.get("data")
    if "json" in wanted:
        content = json.dumps(wanted["json"]).encode()
    headers = {name: str(value).encode("utf-8", "replace") for name, value in (wanted.get("headers") or {}).items()}
    request = httpx.Request(
        wanted["method"],
        wanted["url"],
        params=wanted.get("params"),
        headers=headers,
        content=content.encode() if isinstance(content, str) else content,
    )
    answer: httpx.Response = api.respond(request)
    return answer


@pytest.mark.parametrize("label", OPERATIONS)
def test_an_endpoint(fuzz_world: FuzzWorld, good_bodies: GoodBodies, label: str):
    operation = OPERATIONS[label]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=_requests(operation, fuzz_world.names, good_bodies(label)))
    def check(case: Case[Any]) -> None:
        fuzz_world.reset()
        before = fuzz_world.api.contents()
        answer = _send(fuzz_world.api, case)
        case.validate_response(answer, checks=ANSWER_CHECKS)
        if answer.is_client_error:
            assert fuzz_world.api.contents() == before, f"refused, and changed: {case.as_curl_command()}"

    check()


def test_every_operation_of_the_document_is_tried():
    document = json.loads(DOCUMENT.read_text())
    wanted = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert set(OPERATIONS) == wanted


def test_good_bodies_are_good(fuzz_world: FuzzWorld, good_bodies: GoodBodies):
    """Otherwise nothing nearly right would ever be tried."""
    for label, operation in OPERATIONS.items():
        bodies = good_bodies(label)
        taken = False
        for body in bodies:
            for stream in fuzz_world.names["stream"]:
                fuzz_world.reset()
                path = operation.path
                known = {"stream": stream}
                for name, values in fuzz_world.names.items():
                    path = path.replace(f"{{{name}}}", known.get(name, values[0]))
                request = httpx.Request(operation.method.upper(), f"{BASE}{path}", content=json.dumps(body).encode())
                taken = taken or fuzz_world.api.respond(request).is_success
        assert taken or not bodies, label

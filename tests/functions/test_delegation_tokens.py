"""Delegation tokens over HTTP: what each route grants, and what the functions themselves send to segment stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from functions_in_memory import Call, FunctionWorld, handler_of, serving_function
from lambda_context import FunctionContext

from functions import token_wiring, wiring
from functions.environment import EnvironmentVariableError
from headrace import topology
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.codec.delegation_tokens import TokenClaims, TokenKey, TokenKeys, token_keys_text, verify_token
from headrace.model.access import EVERYTHING, Access, allows
from headrace.model.errors import UnavailableError

KEYS = TokenKeys((TokenKey("2026-11-22-0a1b2c", b"k" * 32),))
CLOCK = ManualClock()
SCOPE = "/v1/scopes/shop"
ROUTES = [
    (f"{SCOPE}/streams/orders", "prn::/scope:shop/stream:orders", "shop/orders/0.#epoch.0"),
    (f"{SCOPE}/key-value-tables/prices", "prn::/scope:shop/key-value-table:prices", "shop/prices_kvtable/0.#epoch.0"),
    (f"{SCOPE}/reader-groups/billing", "prn::/scope:shop/reader-group:billing", "shop/_RGbilling/0.#epoch.0"),
]


def _require_tokens(monkeypatch: pytest.MonkeyPatch, file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text)
    monkeypatch.setenv("HEADRACE_TOKENS", "required")
    monkeypatch.setenv("HEADRACE_TOKEN_KEYS_FILE", str(file))
    monkeypatch.setattr(wiring, "clock", lambda: CLOCK)
    wiring.forget_services()


@pytest.fixture
def required(world: FunctionWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FunctionWorld:
    """Functions that sign with KEYS."""
    _require_tokens(monkeypatch, tmp_path / "keys.json", token_keys_text(KEYS))
    return world


def _claims(token: str) -> TokenClaims:
    return verify_token(token, KEYS, CLOCK.now_ms() / 1_000)


@pytest.mark.usefixtures("required")
@pytest.mark.parametrize(("method", "access"), [("GET", Access.READ), ("POST", Access.READ_UPDATE)])
@pytest.mark.parametrize(("path", "resource", "segment"), ROUTES)
def test_a_route_grants_its_access(call: Call, path: str, resource: str, segment: str, method: str, access: Access):
    answer = call(method, f"{path}/delegation-token")
    assert (answer.status, set(answer.body)) == (200, {"token", "expiresMs"})
    assert answer.headers["Cache-Control"] == "no-store"
    claims = _claims(answer.body["token"])
    assert claims.grants == {resource: access}
    assert allows(claims.grants, segment, access)
    assert not allows(claims.grants, segment, Access(access + 1))
    assert answer.body["expiresMs"] == claims.expires_at_s * 1_000 == CLOCK.now_ms() + 600_000


@pytest.mark.usefixtures("required")
def test_only_put_grants_to_truncate_a_stream(call: Call):
    answer = call("PUT", f"{SCOPE}/streams/orders/delegation-token")
    assert _claims(answer.body["token"]).grants == {"prn::/scope:shop/stream:orders": Access.MANAGE}
    (route,) = [
        route for route in topology.ROUTES if route.method == "PUT" and route.path.endswith("/delegation-token")
    ]
    assert route.access is topology.kinds.Access.MANAGE


@pytest.mark.usefixtures("required")
def test_a_group_token_does_not_open_a_table_of_its_name(call: Call):
    """The policy of the caller need not allow the routes of tables."""
    answer = call("POST", f"{SCOPE}/reader-groups/prices/delegation-token")
    assert not allows(_claims(answer.body["token"]).grants, "shop/prices_kvtable/0.#epoch.0", Access.READ)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(("path", "resource", "segment"), ROUTES)
def test_without_tokens_the_answer_is_empty(call: Call, path: str, resource: str, segment: str, method: str):
    answer = call(method, f"{path}/delegation-token")
    assert (answer.status, answer.body) == (200, {"token": "", "expiresMs": 0})
    assert answer.headers["Cache-Control"] == "no-store"


def test_issuing_reads_no_metadata(required: FunctionWorld, call: Call, monkeypatch: pytest.MonkeyPatch):
    def refuse() -> Any:
        raise AssertionError("the metadata store was asked")

    monkeypatch.setattr(wiring, "metadata_store", refuse)
    before = required.contents()
    assert call("POST", f"{SCOPE}/streams/missing/delegation-token").status == 200
    assert required.contents() == before
    assert topology.function("delegation-tokens").grants == ("token-keys:read",)


@pytest.mark.usefixtures("required")
@pytest.mark.parametrize("name", ["__x", "a%2Fb", "a%25", "x" * 256, "%20", "a*"])
@pytest.mark.parametrize("path", ["streams/{}", "key-value-tables/{}", "reader-groups/{}"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_names_that_cannot_exist_are_refused(call: Call, method: str, path: str, name: str):
    answer = call(method, f"{SCOPE}/{path.format(name)}/delegation-token")
    assert (answer.status, answer.code) == (400, "path_not_canonical" if "%" in name else "invalid_name")
    assert call(method, f"/v1/scopes/{name}/{path.format('t')}/delegation-token").status == 400


@pytest.mark.usefixtures("required")
@pytest.mark.parametrize(
    ("authorizer", "subject"),
    [
        ({"iam": {"userArn": "arn:aws:sts::1:assumed-role/app/i-1"}}, "arn:aws:sts::1:assumed-role/app/i-1"),
        (None, "local"),
        ({"iam": None}, "local"),
        ({}, "local"),
    ],
)
def test_the_subject_is_the_principal(context: FunctionContext, authorizer: dict[str, Any] | None, subject: str):
    path = f"{SCOPE}/streams/orders/delegation-token"
    request = {"http": {"method": "POST", "path": path}, "stage": "$default"}
    event = {"version": "2.0", "rawPath": path, "rawQueryString": "", "headers": {}, "isBase64Encoded": False}
    event["requestContext"] = request | ({} if authorizer is None else {"authorizer": authorizer})
    result = handler_of(serving_function("POST", path))(event, context)
    assert _claims(result["body"].split('"')[3]).subject == subject


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        (token_keys_text(TokenKeys((TokenKey("ended", b"e" * 32, 0, 1),))), 503, "no_token_key"),
        ('{"keys": []}', 500, "corrupt"),
        ("", 500, "corrupt"),
    ],
)
def test_missing_keys_are_a_fault_of_the_deployment(
    world: FunctionWorld, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, status: int, code: str
):
    _require_tokens(monkeypatch, tmp_path / "keys.json", text)
    answer = call("GET", f"{SCOPE}/streams/orders/delegation-token")
    assert (answer.status, answer.code) == (status, code)
    assert "token" not in answer.body


@pytest.mark.parametrize("variable", ["HEADRACE_TOKENS", "HEADRACE_TOKEN_LIFE_S"])
def test_wrong_settings_do_not_blame_the_caller(
    required: FunctionWorld, call: Call, monkeypatch: pytest.MonkeyPatch, variable: str
):
    monkeypatch.setenv(variable, "perhaps")
    wiring.forget_services()
    assert call("GET", f"{SCOPE}/streams/orders/delegation-token").status == 500
    with pytest.raises(EnvironmentVariableError, match=variable):
        token_wiring.internal_token()


def test_functions_call_stores_with_a_token_for_everything(required: FunctionWorld):
    claims = _claims(token_wiring.internal_token()())
    assert claims.grants == {EVERYTHING: Access.ADMIN}
    assert claims.subject.startswith("headrace-function/")


def test_without_tokens_functions_send_the_empty_one(world: FunctionWorld):
    assert token_wiring.internal_token()() == ""


def test_a_store_call_without_a_key_can_be_repeated(
    world: FunctionWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    _require_tokens(monkeypatch, tmp_path / "keys.json", "")
    (tmp_path / "keys.json").unlink()
    with pytest.raises(UnavailableError, match="cannot be read"):
        token_wiring.internal_token()()


def test_every_caller_of_stores_may_read_the_keys():
    callers = {declared.name for declared in topology.FUNCTIONS if declared.reaches_segment_stores}
    readers = {declared.name for declared in topology.FUNCTIONS if "token-keys:read" in declared.grants}
    assert readers == callers | {"delegation-tokens"}
    assert "token-keys:read" in topology.SEGMENT_STORES.grants

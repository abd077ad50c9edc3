"""The function behind the stack of the token keys: a deployment continues only when a key signs."""

from __future__ import annotations

from typing import Any

import pytest
from lambda_context import FunctionContext
from secrets_in_memory import SECRET, SecretsInMemory

from functions import wiring
from functions.deployment import custom_resources
from functions.deployment.custom_resources import ResourceRequest
from functions.deployment.token_key_gate import PATIENCE_MS, handler
from headrace import topology
from headrace.adapters import token_keys
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.token_key_editors import TokenKeySecretEditor, rotate
from headrace.codec.delegation_tokens import KEY_BYTES, NO_KEYS_TEXT, TokenKey, TokenKeys, token_keys_text

LONG = FunctionContext(lambda: 10**9)


class World:
    """A secret without keys, and the reports to CloudFormation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.secrets = SecretsInMemory(NO_KEYS_TEXT)
        self.reports: list[dict[str, str]] = []
        self.makes_key_after: int | None = None
        self.pauses = 0
        monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
        monkeypatch.setenv("HEADRACE_TOKENS", "required")
        monkeypatch.setenv("HEADRACE_TOKEN_KEYS_SECRET", SECRET)
        monkeypatch.setattr(wiring, "clock", lambda: self.clock)
        monkeypatch.setattr(token_keys, "secrets_client", lambda: self.secrets)
        monkeypatch.setattr(custom_resources, "pause", self.pause)
        monkeypatch.setattr(custom_resources, "send_report", self.keep_report)

    def keep_report(self, request: ResourceRequest, problems: list[str], done: str) -> None:
        self.reports.append(request.report(problems, done))

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        assert self.pauses < 1_000, "the gate waits without end"
        self.clock.advance(int(seconds * 1000))
        if self.pauses == self.makes_key_after:
            rotate(TokenKeySecretEditor(SECRET, self.secrets), self.clock, 600)

    def call(self, kind: str) -> str:
        event: dict[str, Any] = {
            "RequestType": kind,
            "ResponseURL": "https://cloudformation.example/signed",
            "StackId": "stack",
            "RequestId": "request",
            "LogicalResourceId": "SigningKey",
            "ResourceProperties": {"ServiceToken": "arn"},
        }
        return handler(event, LONG)["outcome"]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("kind", ["Create", "Update"])
def test_a_deployment_goes_on_when_a_key_signs(world: World, kind: str):
    world.makes_key_after = 3
    assert world.call(kind) == "passed"
    assert world.pauses == 3
    assert world.reports[0]["Status"] == "SUCCESS"


def test_a_rotation_that_makes_no_key_ends_the_deployment(world: World):
    begun_ms = world.clock.now_ms()
    assert world.call("Create") == "failed"
    assert world.reports[0]["Status"] == "FAILED"
    assert "no key signs" in world.reports[0]["Reason"]
    assert "/aws/lambda/headrace-token-keys" in world.reports[0]["Reason"], "where the reason is"
    assert PATIENCE_MS <= world.clock.now_ms() - begun_ms < topology.TOKEN_KEY_GATE.timeout_s * 1000


def test_keys_that_have_ended_do_not_count(world: World):
    ended_s = world.clock.now_ms() // 1_000
    ended = TokenKeys((TokenKey("ended", b"k" * KEY_BYTES, 0, ended_s),))
    world.secrets = SecretsInMemory(token_keys_text(ended))
    assert world.call("Create") == "failed"
    assert "at their end" in world.reports[0]["Reason"]


def test_a_stack_without_keys_can_be_deleted(world: World):
    assert world.call("Delete") == "passed"
    assert world.pauses == 0


def test_the_declared_handler_is_this_one():
    module, _, name = topology.TOKEN_KEY_GATE.handler.rpartition(".")
    assert (module, name) == (handler.__module__, "handler")

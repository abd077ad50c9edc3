"""The command line against all functions over memory adapters."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show, runner

from functions import wiring
from headrace import client
from headrace.cli import session
from headrace.model.external_access import NetworkName


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiInMemory]:
    """The API that commands talk to."""
    made = ApiInMemory(monkeypatch)

    def open_client(
        url: str, auth: session.Auth | None, retry_s: float, network: NetworkName | None
    ) -> client.Headrace:
        return client.connect(url, auth=auth, retry_s=retry_s, transport=made.transport(), network=network)

    monkeypatch.setattr(session, "open_client", open_client)
    yield made
    wiring.forget_services()


@pytest.fixture
def run(api: ApiInMemory, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("stream", "get", "s/t")` runs the command line."""

    return runner(capsys)


@pytest.fixture
def ok(run: Run) -> Show:
    """Runs a command that must succeed without a message. Returns its output."""

    def ok(*arguments: str) -> str:
        ran = run(*arguments)
        assert (ran.code, ran.err) == (0, ""), ran
        return ran.out

    return ok


@pytest.fixture
def as_json(ok: Show) -> ReadJson:
    """Runs a command with --json that must succeed. Returns the document."""
    return lambda *arguments: json.loads(ok(*arguments, "--json"))


@pytest.fixture
def stream(ok: Show) -> str:
    """The ACTIVE stream s/t of two segments."""
    ok("scope", "create", "s")
    ok("stream", "create", "s/t")
    return "s/t"

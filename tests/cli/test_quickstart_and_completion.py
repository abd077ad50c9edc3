"""The first steps: `headrace quickstart`, completion of the shell, and the command line without its extra."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from api_in_memory import ApiInMemory
from command_line import Run, Show

from headrace.cli import application, main, name_completion, quickstart
from headrace.cli.session import SharedOptions
from headrace.client.headrace import AsyncHeadrace

Complete = Callable[[str], list[str]]

HANG_S = 600.0
"""Completion waits a second for names. Here it waits for as long as the machine needs."""


def test_quickstart_prints_the_commands_of_the_running_stack(api: ApiInMemory, ok: Show):
    assert ok("quickstart").splitlines() == list(quickstart.COMMANDS)
    other = ok("quickstart", "--url", "http://other:1").splitlines()
    assert other == ["export HEADRACE_URL=http://other:1", *quickstart.COMMANDS]
    assert json.loads(ok("quickstart", "--json"))["commands"] == list(quickstart.COMMANDS)


def test_quickstart_without_a_stack_says_how_to_start_one(capsys: pytest.CaptureFixture[str]):
    assert main(["quickstart", "--url", "http://127.0.0.1:1", "--retry-s", "0"]) == 5
    assert "headrace up" in capsys.readouterr().err


@pytest.fixture
def complete(
    stream: str, api: ApiInMemory, ok: Show, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Complete:
    """Completes a command line as bash asks for it; s/t, s/u, the group s/g, the table s/kv and scope z exist."""
    ok("scope", "create", "z")
    ok("stream", "create", "s/u")
    ok("group", "create", "s/g", "--stream", stream)
    ok("table", "create", "s/kv", "--primary-key-length", "8")

    def open_async_client(shared: SharedOptions) -> AsyncHeadrace:
        return AsyncHeadrace(shared.controller_url, retry_s=0.0, transport=api.transport())

    monkeypatch.setattr(name_completion, "open_async_client", open_async_client)
    monkeypatch.setattr(name_completion, "ANSWER_WITHIN_S", HANG_S)
    monkeypatch.setenv("_HEADRACE_COMPLETE", "complete_bash")

    def complete(line: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        capsys.readouterr()
        assert main([]) == 0
        return capsys.readouterr().out.split()

    return complete


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("headrace str", ["stream"]),
        ("headrace stream sca", ["scale", "scale-status", "scaling-events"]),
        ("headrace stream scale --seg", ["--segments"]),
        ("headrace event read s/t --format b", ["base64"]),
        ("headrace scope delete ", ["s", "z"]),
        ("headrace stream get ", ["s/", "z/"]),
        ("headrace stream get s/", ["s/t", "s/u"]),
        ("headrace --json stream get s/u", ["s/u"]),
        ("headrace group lag s/", ["s/g"]),
        ("headrace table get s/k", ["s/kv"]),
        ("headrace stream get none/", []),
        ("headrace stream get /", []),
    ],
)
def test_the_shell_completes_commands_and_names(complete: Complete, line: str, found: list[str]):
    assert complete(line) == found


def test_a_slow_controller_completes_nothing(complete: Complete, monkeypatch: pytest.MonkeyPatch):
    async def never(*_: Any) -> list[str]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(name_completion, "ANSWER_WITHIN_S", 0.01)
    monkeypatch.setattr(name_completion, "_stream_names", never)
    assert complete("headrace stream get s/") == []


def test_a_slow_import_of_the_client_completes_names(complete: Complete, monkeypatch: pytest.MonkeyPatch):
    """After the start of a machine it takes over a second, and no answer was waited for."""
    opened, ask = name_completion.open_async_client, name_completion._stream_names

    monkeypatch.setattr(name_completion, "ANSWER_WITHIN_S", 0.01)

    def open_async_client(shared: SharedOptions) -> AsyncHeadrace:
        time.sleep(2 * name_completion.ANSWER_WITHIN_S)
        monkeypatch.setattr(name_completion, "ANSWER_WITHIN_S", HANG_S)  # only what began before is over
        return opened(shared)

    async def names(client: AsyncHeadrace, scope: str) -> list[str]:
        await asyncio.sleep(0.01)  # as a request on a socket, it waits
        return await ask(client, scope)

    monkeypatch.setattr(name_completion, "_stream_names", names)
    monkeypatch.setattr(name_completion, "open_async_client", open_async_client)
    assert complete("headrace stream get s/") == ["s/t", "s/u"]


def test_completion_can_be_installed(run: Run):
    assert "--install-completion" in run("--help").out


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    assert main(["scope", "list"]) == 2
    assert capsys.readouterr().err == (
        "headrace: the command line is an extra of the package. To install it: pip install 'headrace[cli]'\n"
    )


def test_ctrl_c_during_the_start_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(application, "run", interrupted)
    assert main(["scope", "list"]) == 130
    assert capsys.readouterr().err == ""


def test_the_client_does_not_import_the_extra():
    code = "import sys, headrace.client; sys.exit('typer' in sys.modules)"  # httpx imports rich where it finds it
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_help_text_imports_no_client():
    code = (
        "import sys\n"
        "from headrace.cli import main\n"
        "assert main(['--help']) == 0\n"
        "sys.exit(any(name in sys.modules for name in ('httpx', 'headrace.client', 'pydantic')))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0

"""What all commands share: where the controller is, exit codes, hints, help texts, closed pipes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import Run, Show

from headrace.cli import actions, application, main, session
from headrace.cli.outcome import ExitCode, error_line, exit_code
from headrace.model import errors


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    names = command.list_commands(None) if hasattr(command, "list_commands") else ()
    if not names:
        yield path, command
    for name in names:
        yield from _commands(command.get_command(None, name), (*path, name))


COMMANDS = dict(_commands(application.command_line()))
OURS = {path: command for path, command in COMMANDS.items() if path[0] not in application.SUMMARIES}


def _examples(command: Any) -> list[str]:
    lines = (command.epilog or "").splitlines()
    return [line.strip() for line in lines[lines.index("Examples:") + 1 :]] if "Examples:" in lines else []


def test_there_are_commands_to_check():
    assert len(OURS) > 60


@pytest.mark.parametrize("path", OURS, ids=" ".join)
def test_help_has_summary_options_and_examples(run: Run, path: tuple[str, ...]):
    ran = run(*path, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert f"Usage: headrace {' '.join(path)}" in ran.out
    assert all(option in ran.out for option in ("--url", "--json", "--auth", "--retry-s"))
    assert OURS[path].help
    assert _examples(OURS[path])


@pytest.mark.parametrize("path", OURS, ids=" ".join)
def test_examples_are_valid_command_lines(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    """Each `headrace` of a pipe is parsed, and one of them is the command that has the example."""
    parsed: list[str] = []

    def execute(found: session.Session, *_: Any) -> ExitCode:
        parsed.append(found.program)
        return ExitCode.DONE

    monkeypatch.setattr(actions, "execute", execute)
    for example in _examples(OURS[path]):
        parsed.clear()
        for part in example.split(" | "):
            words = shlex.split(part)
            if words[0] == "headrace":
                assert main(words[1:]) == 0, example
        assert f"headrace {' '.join(path)}" in parsed


@pytest.mark.parametrize(
    "arguments",
    [
        ("scope", "list", "--json"),
        ("scope", "--json", "list"),
        ("--json", "scope", "list"),
        ("--json", "scope", "list", "--json"),
    ],
    ids=" ".join,
)
def test_shared_options_stand_before_or_after(stream: str, ok: Show, arguments: tuple[str, ...]):
    assert json.loads(ok(*arguments)) == {"scopes": [{"scope": "s"}]}


def test_the_url_comes_from_the_option_or_the_environment(ok: Show, run: Run, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    open_client = session.open_client
    monkeypatch.setattr(session, "open_client", lambda url, *options: asked.append(url) or open_client(url, *options))
    ok("scope", "list")
    monkeypatch.setenv(session.URL_VARIABLE, "http://from-the-environment")
    ok("scope", "list")
    ok("scope", "list", "--url", "http://from-the-option")
    ok("--url", "http://before", "scope", "list")
    ok("--url", "http://before", "scope", "list", "--url", "http://after")
    assert asked == [
        session.URL_DEFAULT,
        "http://from-the-environment",
        "http://from-the-option",
        "http://before",
        "http://after",
    ]
    assert run("scope", "list", "--url", "ftp://nowhere").code == ExitCode.REFUSED


def test_the_network_is_the_clients(ok: Show, run: Run, monkeypatch: pytest.MonkeyPatch):
    asked: list[object] = []
    open_client = session.open_client
    monkeypatch.setattr(session, "open_client", lambda *options: asked.append(options[-1]) or open_client(*options))
    ok("scope", "list")
    ok("scope", "list", "--network", "external")
    ok("--network", "external", "scope", "list", "--network", "vpc")
    assert asked == [None, "external", "vpc"]
    assert run("scope", "list", "--network", "moon").code == ExitCode.USAGE
    monkeypatch.setenv("HEADRACE_NETWORK", "moon")
    assert run("scope", "list").code == ExitCode.REFUSED


def test_the_default_url_is_that_of_the_client():
    from headrace.client import headrace

    assert session.URL_DEFAULT == headrace.DEFAULT_URL
    assert session.URL_VARIABLE == headrace.URL_VARIABLE


def test_a_controller_that_is_not_there(capsys: pytest.CaptureFixture[str]):
    assert main(["scope", "list", "--url", "http://127.0.0.1:1", "--retry-s", "0"]) == ExitCode.UNREACHABLE
    assert "`headrace up` starts a controller here" in capsys.readouterr().err


def test_a_controller_that_answers_is_not_said_to_be_missing():
    answered = errors.UnavailableError("reading: DynamoDB did not serve this", details={"attempts": 9})
    assert error_line(answered) == "reading: DynamoDB did not serve this"


@pytest.mark.parametrize("kind", errors.error_classes().values(), ids=lambda kind: kind.__name__)
def test_exit_codes(kind: type[errors.HeadraceError]):
    assert exit_code(kind("x")) is ExitCode(kind.reported_as.exit_code)


def test_an_error_is_one_line_with_the_most_specific_hint():
    assert error_line(errors.InvalidRequestError("a\nb\n c")) == "a b c"
    line = error_line(errors.IllegalStateError("t is ACTIVE", code="stream_not_sealed"))
    assert line == "t is ACTIVE (hint: seal it first: headrace stream seal SCOPE/STREAM)"
    assert "hint" in error_line(errors.NotFoundError("gone", code="a_code_of_tomorrow"))


def test_a_hostile_error_names_no_command():
    scope = "x; rm -rf ~ \x1b[2J"
    line = error_line(errors.NotFoundError("gone \x1b[2J", details={"scope": scope, "stream": "t"}))
    assert line == "gone \\x1b[2J (hint: to list them: headrace stream list SCOPE)"
    known = error_line(errors.NotFoundError("gone", details={"scope": "shop", "stream": "t"}))
    assert known == "gone (hint: to list them: headrace stream list shop)"


@pytest.mark.parametrize("kind", [errors.NotFoundError, errors.CorruptError])
def test_another_server_is_answered_with_the_option(kind: type[errors.HeadraceError]):
    error = kind("no", details={"url": "http://c"}, code="not_a_controller")
    assert error_line(error) == "no (hint: --url or HEADRACE_URL names the controller)"


def test_ctrl_c_in_an_action_is_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "open_client", interrupted)
    ran = run("scope", "list")
    assert (ran.code, ran.out, ran.err) == (ExitCode.INTERRUPTED, "", "")


def test_a_reader_that_has_read_enough_is_no_failure():
    """As `headrace ... | head`: the pipe is closed before anything is written to it."""
    code = (
        "import sys\n"
        "from headrace.cli.actions import execute\n"
        "from headrace.cli.outcome import Outcome\n"
        "from headrace.cli.session import Session, SharedOptions\n"
        "sys.exit(execute(Session('x', SharedOptions()), lambda session: Outcome({}, text='z' * 1_000_000), {}))\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run([sys.executable, "-c", code], stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_json_is_one_document(stream: str, ok: Show):
    for arguments in (("scope", "list"), ("stream", "list", "s"), ("segment", "list", "s/t"), ("dead-letter", "list")):
        assert isinstance(json.loads(ok(*arguments, "--json")), dict)

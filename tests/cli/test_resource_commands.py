"""What all sub-commands share: where the controller is, exit codes, hints, tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from api_in_memory import ApiInMemory
from command_line import Run, Show

from headrace.cli import commands, resource_command
from headrace.cli.outcome import cell, fields, table, time_text
from headrace.cli.resource_command import EXIT_UNAVAILABLE, error_line, exit_code
from headrace.model import errors


def test_every_built_in_command_has_a_help_text(run: Run):
    for name in commands.BUILT_IN:
        ran = run(name, "--help")
        assert (ran.code, ran.err) == (0, "")
        assert f"usage: headrace {name}" in ran.out


def test_every_action_takes_the_shared_options(run: Run):
    for name in commands.BUILT_IN:
        actions = run(name, "--help").out.split("ACTION")[-1]
        for action in (line.split()[0] for line in actions.splitlines() if line.startswith("    ") and line[4] != " "):
            shown = run(name, action, "--help").out
            assert all(option in shown for option in ("--url", "--json", "--auth", "--retry-s")), (name, action)


def test_the_url_comes_from_the_option_or_the_environment(api: ApiInMemory, run: Run, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    connect = resource_command.connect
    monkeypatch.setattr(
        resource_command, "connect", lambda url, **options: asked.append(url) or connect(url, **options)
    )
    run("scope", "list")
    monkeypatch.setenv(resource_command.URL_VARIABLE, "http://from-the-environment")
    run("scope", "list")
    run("scope", "list", "--url", "http://from-the-option")
    assert asked == [resource_command.DEFAULT_URL, "http://from-the-environment", "http://from-the-option"]
    assert run("scope", "list", "--url", "ftp://nowhere").code == 1


def test_a_controller_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    from headrace.cli import main

    assert main(["scope", "list", "--url", "http://127.0.0.1:1", "--retry-s", "0"]) == EXIT_UNAVAILABLE
    assert "`headrace up` starts a controller here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.HeadraceError("x"), 1),
        (errors.InvalidRequestError("x"), 1),
        (errors.UnauthorizedError("x"), 1),
        (errors.SealedError("x"), 1),
        (errors.TruncatedError("x"), 1),
        (errors.CorruptError("x"), 1),
        (errors.NotFoundError("x"), 3),
        (errors.AlreadyExistsError("x"), 4),
        (errors.ConflictError("x"), 4),
        (errors.FencedError("x"), 5),
        (errors.ThrottledError("x"), 5),
        (errors.UnavailableError("x"), 5),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_exit_codes(error: errors.HeadraceError, code: int):
    assert exit_code(error) == code


def test_an_error_is_one_line_with_the_most_specific_hint():
    assert error_line(errors.InvalidRequestError("a\nb\n c")) == "a b c"
    line = error_line(errors.IllegalStateError("t is ACTIVE", code="stream_not_sealed"))
    assert line == "t is ACTIVE (hint: seal it first: headrace stream seal SCOPE/STREAM)"
    assert "hint" in error_line(errors.NotFoundError("gone", code="a_code_of_tomorrow"))


def test_tables_align_and_cells_stay_on_their_line():
    assert table(("A", "LONG"), [("x", 1), ("yyy", 22)]) == "A    LONG\nx       1\nyyy    22"
    assert table(("A",), []) == "A"
    assert fields({"a": 1, "long": None}) == "a     1\nlong  -"
    assert [cell(value) for value in (True, False, [], {"a": [1, 2]}, "a\nb\x9b")] == [
        "yes", "no", "-", "a=1, 2", "a\\x0ab\\x9b",
    ]  # fmt: skip
    assert time_text(0) == "1970-01-01 00:00:00Z"
    assert time_text(1 << 62) == str(1 << 62)


def test_a_reader_that_has_read_enough_is_no_failure():
    """As `headrace ... | head`: the pipe is closed before anything is written to it."""
    code = (
        "import sys\n"
        "from headrace.cli import resource_command\n"
        "from headrace.cli.outcome import Outcome\n"
        "command = resource_command.ResourceCommand('x', 'x')\n"
        "command.action('y', lambda client, options: Outcome({}, text='z' * 1_000_000), 'y')\n"
        "sys.exit(command(['y']))\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run([sys.executable, "-c", code], stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_json_is_one_document(stream: str, ok: Show):
    for arguments in (("scope", "list"), ("stream", "list", "s"), ("segment", "list", "s/t"), ("dead-letter", "list")):
        assert isinstance(json.loads(ok(*arguments, "--json")), dict)

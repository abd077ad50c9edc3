"""The command `headrace` and how it finds its sub-commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from headrace import __version__
from headrace.cli import application, main
from headrace.cli.outcome import ExitCode
from headrace.model.errors import UnavailableError


def works(arguments: Sequence[str]) -> int:
    return len(arguments)


def fails(arguments: Sequence[str]) -> int:
    raise UnavailableError("the controller does not answer")


def interrupted(arguments: Sequence[str]) -> int:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _made_up_commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = sys.modules[__name__]
    monkeypatch.setitem(sys.modules, "made_up_commands", module)
    found = {
        name: EntryPoint(name, f"made_up_commands:{name}", application.GROUP)
        for name in ("works", "fails", "interrupted")
    }
    found["missing"] = EntryPoint("missing", "a_module_that_is_not_there:main", application.GROUP)
    monkeypatch.setattr(application, "added_commands", lambda: found)
    application.command_line.cache_clear()
    yield
    application.command_line.cache_clear()


def test_arguments_reach_the_command_and_its_code_comes_back():
    assert main(["works", "--flag", "x", "y"]) == 3


def test_an_error_of_ours_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert main(["fails"]) == ExitCode.REFUSED
    assert capsys.readouterr().err == "headrace fails: the controller does not answer\n"


def test_ctrl_c_is_no_traceback(capsys: pytest.CaptureFixture[str]):
    assert main(["interrupted"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == ""


def test_a_command_that_is_not_installed_says_how_to_install_it(capsys: pytest.CaptureFixture[str]):
    assert main(["missing"]) == ExitCode.USAGE
    assert "pip install" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["unknown"]])
def test_a_command_line_that_makes_no_sense(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == ExitCode.USAGE
    assert "Usage: headrace" in capsys.readouterr().err


def test_the_installed_command_knows_up_and_its_version():
    headrace = Path(sys.executable).with_name("headrace")
    version = subprocess.run([headrace, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"headrace {__version__} (interpreted)\n"
    shown = subprocess.run([headrace, "up", "--help"], capture_output=True, text=True, check=True)
    assert "--segment-stores" in shown.stdout


LEAN = """
import os, sys
from headrace.cli import main
main(sys.argv[1:])
print(*sorted(sys.modules), file=sys.stderr)
"""


def _imported(*arguments: str) -> set[str]:
    ran = subprocess.run([sys.executable, "-c", LEAN, *arguments], capture_output=True, text=True, check=True)
    return set(ran.stderr.split())


def test_help_imports_neither_client_nor_other_resources():
    for arguments in (("--help",), ("stream", "--help")):
        imported = _imported(*arguments)
        assert not imported & {"httpx", "headrace.client", "pyarrow", "botocore", "headrace.cli.group"}


def test_a_request_imports_no_other_command_line():
    imported = _imported("scope", "list", "--url", "http://127.0.0.1:1")
    assert {"httpx", "headrace.client"} <= imported
    others = {"click", "pygments", "rich", "pyarrow", "numpy", "botocore", "cryptography", "msgspec"}
    assert not imported & (others | {"importlib.metadata", "headrace.cli.top", "headrace.cli.stream"})
    assert not imported & {"headrace.wire", "headrace.api.streams", "headrace.client.trust"}
    shared = {"defaults", "headrace", "http_api", "lazy_imports", "loop_thread", "ownership", "closing", "backoff"}
    parts = {name.split(".")[2] for name in imported if name.startswith("headrace.client.")}
    assert parts == shared | {"administration", "client_zone", "synchronous"}


def test_a_closed_port_of_this_machine_fails_at_once(capsys: pytest.CaptureFixture[str]):
    assert main(["scope", "list", "--url", "http://127.0.0.1:1"]) == ExitCode.UNREACHABLE
    error = capsys.readouterr().err
    assert error.startswith("headrace scope list: no controller listens at http://127.0.0.1:1 (hint: `headrace up`")


@pytest.mark.parametrize("resource", application.RESOURCES)
def test_summaries_in_the_help_text_are_whole(resource: str, capsys: pytest.CaptureFixture[str]):
    assert main([resource, "--help"]) == 0
    commands = capsys.readouterr().out.partition("\nCommands:\n")[2]
    assert commands
    assert "..." not in commands


def test_commands_of_the_help_text_are_in_groups(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [shown.index(f"{panel}:") for panel in PANELS_IN_ORDER] == sorted(
        shown.index(f"{panel}:") for panel in PANELS_IN_ORDER
    )
    assert "..." not in shown.partition(f"{application.EVERYDAY}:")[2]
    assert set(application.PANELS) <= {*application.RESOURCES, *application.SUMMARIES, *application.SINGLE_COMMANDS}


PANELS_IN_ORDER = (application.EVERYDAY, application.OPERATE, application.SECURITY)

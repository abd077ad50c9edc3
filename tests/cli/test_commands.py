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
from headrace.cli.exit_codes import ExitCode
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

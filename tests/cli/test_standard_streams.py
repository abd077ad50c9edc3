"""The command line as a process whose standard streams are closed, full, or not in UTF-8. No controller is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

Shell = Callable[[str], tuple[int, str, str]]

HEADRACE = f"'{sys.executable}' -c 'import sys; from headrace.cli import main; sys.exit(main())'"
FULL = "cannot write the output: No space left on device"
CLOSED = "cannot write the output: Bad file descriptor"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs a line of bash, in which `headrace` is the command line: exit code, output, errors."""
    monkeypatch.setenv("HEADRACE_URL", "http://127.0.0.1:9")

    def shell(line: str) -> tuple[int, str, str]:
        command = ["bash", "-c", f'set -o pipefail; headrace() {{ {HEADRACE} "$@"; }}; {line}']
        done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
        return done.returncode, done.stdout, done.stderr

    return shell


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("headrace --help > /dev/full", 1, f"headrace: {FULL}"),
        ("headrace stream scale --help >&-", 1, f"headrace: {CLOSED}"),
        ("headrace event write s/t /", 1, "headrace event write: cannot read /: Is a directory"),
        ("headrace event write s/t --routing-key $'\\xff'", 1, r"the argument '\udcff' is not text in UTF-8"),
        ("headrace event write s/t --key-separator $'\\xff'", 1, r"the argument '\udcff' is not text in UTF-8"),
        ("headrace event write s/t --key-field $'\\xff' --format jsonl", 1, "is not text in UTF-8"),
        ("headrace stream create s/t --tag a --tag $'\\xff'", 1, "is not text in UTF-8"),
        ("headrace scope list --url $'\\xff'", 1, "is not text in UTF-8"),
        ("headrace event write s/t $'\\xff'", 1, r"cannot read \udcff: No such file or directory"),
    ],
)
def test_a_failed_stream_is_one_line_and_a_code(shell: Shell, line: str, code: int, message: str):
    ended, out, err = shell(line)
    assert (ended, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("headrace bogus 2> /dev/full", 2),
        ("headrace bogus 2>&-", 2),
        ("headrace bogus <&- >&- 2>&-", 2),
        ("headrace scope get s --retry-s 0 2> /dev/full", 5),
    ],
)
def test_the_exit_code_needs_no_standard_error(shell: Shell, line: str, code: int):
    assert shell(line) == (code, "", "")


@pytest.mark.parametrize("command", ["--help", "--version", "stream scale --help"])
def test_a_closed_pipe_is_no_error_of_a_help_text(shell: Shell, command: str):
    assert shell(f"headrace {command} | true") == (0, "", "")


@pytest.mark.parametrize("stream", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_client_of_a_process_without_streams_ends(shell: Shell, stream: str):
    """uvloop ends the process if it closes a descriptor below 3."""
    program = "from headrace.client import connect; connect().close(); import os; os._exit(7)"
    assert shell(f"'{sys.executable}' -c '{program}' {stream}") == (7, "", "")


def test_closed_descriptors_stay_unreadable(shell: Shell):
    program = """
import errno, os
from headrace.adapters.standard_descriptors import occupy_closed_standard_descriptors
occupy_closed_standard_descriptors()
with open(os.devnull) as opened:
    assert opened.fileno() > 2
for call in (lambda: os.read(0, 1), lambda: os.write(1, b"x")):
    try:
        call()
    except OSError as error:
        assert error.errno == errno.EBADF
    else:
        os._exit(1)
os.write(2, b"lost")
os._exit(7)
"""
    assert shell(f"'{sys.executable}' -c '{program}' <&- >&- 2>&-") == (7, "", "")


@pytest.mark.parametrize(
    ("encoding", "expected"), [("latin-1", b"\xe9\\u2192\n"), ("ascii", b"\\xe9\\u2192\n"), ("utf-8", "é→\n".encode())]
)
def test_characters_that_an_encoding_lacks_are_escaped(encoding: str, expected: bytes):
    program = r"from headrace.cli import main; main(['--version']); print('\xe9\u2192')"
    environment = {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines(keepends=True)[1] == expected

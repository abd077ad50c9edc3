"""Standard input, output and errors of the process: closed, full, or in another encoding than UTF-8.

Errors of the output may come as late as at the last flush. Python would report them with a traceback, when it exits.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from headrace.adapters.standard_descriptors import occupy_closed_standard_descriptors
from headrace.cli.outcome import ExitCode
from headrace.model.errors import InvalidRequestError


def open_standard_streams() -> None:
    """Makes all three usable. Python has None for one whose descriptor was closed when the process started."""
    occupy_closed_standard_descriptors()
    if sys.stdin is None:
        sys.stdin = _text(io.BufferedReader(io.FileIO(0, "r", closefd=False)))
    if sys.stdout is None:
        sys.stdout = _text(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    if sys.stderr is None:
        sys.stderr = _text(io.BufferedWriter(io.FileIO(2, "w", closefd=False)))
    if isinstance(sys.stdout, io.TextIOWrapper):  # a character that its encoding does not have is escaped
        sys.stdout.reconfigure(errors="backslashreplace")


def print_message(line: str) -> None:
    """Prints a line on standard error. If that fails, only the exit code can tell."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def unreadable(source: str, error: OSError) -> InvalidRequestError:
    """The error of an input that cannot be opened or read."""
    return InvalidRequestError(f"cannot read {source}: {error.strerror or type(error).__name__}")


def output_failed(error: OSError, complain: Callable[[str], object]) -> ExitCode:
    """The exit code after an error of reading or writing; says what was wrong.

    The command has not failed if the reader of the output closed its pipe early, as `head` does.
    """
    if isinstance(error, BrokenPipeError):
        _discard(sys.stdout)
        return ExitCode.DONE
    reason = error.strerror or type(error).__name__
    if error.filename is not None:
        complain(f"{os.fsdecode(error.filename)}: {reason}")
    else:
        complain(f"cannot write the output: {reason}")
        _discard(sys.stdout)
    return ExitCode.REFUSED


def end_output(code: int, complain: Callable[[str], object]) -> int:
    """Flushes the output at the end of the process; returns its exit code."""
    try:
        sys.stdout.flush()
    except OSError as error:
        code = code or output_failed(error, complain)
        _discard(sys.stdout)
    try:
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)
    return code


def _text(binary: io.BufferedReader | io.BufferedWriter) -> io.TextIOWrapper:
    return io.TextIOWrapper(binary, "utf-8", "backslashreplace")


def _discard(stream: TextIO) -> None:
    """What is buffered goes to /dev/null, when Python flushes the stream again at its exit."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)

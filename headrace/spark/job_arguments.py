"""Arguments of a Glue job, the same on AWS and on a laptop.

In Glue, `awsglue.utils.getResolvedOptions` returns them. Elsewhere this module follows the same rules: arguments
have the form `--NAME value`, unknown ones are ignored (Glue adds its own), and a missing one is an error. Glue's
bookmarks are not supported: the progress in a stream is in Spark's checkpoint.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from headrace.model.errors import InvalidRequestError


def job_arguments(
    required: Sequence[str], optional: Sequence[str] = (), *, argv: Sequence[str] | None = None
) -> dict[str, str | None]:
    """Values by name; an optional argument that is not given is None. Dashes in names become underscores in keys.

    `argv` is the command line with the program's name first, by default that of this process.

    Raises:
        InvalidRequestError: code "missing_argument": a required argument or a value is missing.
    """
    argv = sys.argv if argv is None else argv
    given = [name for name in optional if _is_given(name, argv)]
    try:
        resolve = importlib.import_module("awsglue.utils").getResolvedOptions
    except ImportError:
        resolve = _resolved
    values = dict(resolve(list(argv), [*required, *given]))
    wanted = [name.replace("-", "_") for name in [*required, *optional]]
    return {name: values.get(name) for name in wanted}


def _is_given(name: str, argv: Sequence[str]) -> bool:
    return any(argument == f"--{name}" or argument.startswith(f"--{name}=") for argument in argv[1:])


def _resolved(argv: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    parser = _Parser(prog=argv[0], add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(f"--{name}", required=True, dest=name.replace("-", "_"))
    return vars(parser.parse_known_args(list(argv[1:]))[0])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """A job must fail with an exception that its runner shows, not leave by itself."""
        raise InvalidRequestError(f"{self.prog}: {message}; give each as --NAME value", code="missing_argument")

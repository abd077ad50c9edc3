"""The pytest plugin of `headrace[testing]`: fixtures with a local stack, a client, and a scope for each test.

pytest loads it wherever the package is installed. It imports nothing but pytest until a test asks for a fixture.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from headrace.client import Headrace

URL_VARIABLE: Final = "HEADRACE_TEST_URL"
"""The address of a running deployment that the tests use instead of a stack of their own."""

_numbers: Final = itertools.count(1)


@pytest.fixture(scope="session")
def headrace_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a local stack that all tests of the run share, with pytest-xdist all workers, too.

    It starts with the first test that needs it and ends with the run. Its data are removed. HEADRACE_TEST_URL names a
    deployment to use instead.
    """
    given = os.environ.get(URL_VARIABLE)
    if given:
        yield given
        return
    from headrace.testing.shared_stack import shared_stack

    base = tmp_path_factory.getbasetemp()
    # The workers of pytest-xdist have directories below that of the run.
    of_run = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with shared_stack(of_run / "headrace-stack", _start) as url:
        yield url


@pytest.fixture(scope="session")
def headrace_client(headrace_url: str) -> Iterator[Headrace]:
    """A client of the stack for all tests of the process."""
    from headrace.client import connect

    # A stack of the tests has no addresses outside, also where the programs under test have HEADRACE_NETWORK=external.
    with connect(headrace_url, network=None if os.environ.get(URL_VARIABLE) else "vpc") as client:
        yield client


@pytest.fixture
def headrace_scope(headrace_client: Headrace) -> Iterator[str]:
    """The name of a new, empty scope. After the test it is deleted with all that is in it, in the background."""
    scope = f"test-{secrets.token_hex(6)}-{next(_numbers)}"
    headrace_client.admin.create_scope(scope)
    yield scope
    headrace_client.admin.delete_scope(scope, recursive=True, wait=False)


@contextmanager
def _start(directory: Path) -> Iterator[str]:
    """Starts the local stack with one segment store."""
    from headrace.local.running import running_stack

    with running_stack(directory, segment_stores=1) as stack:
        yield stack["endpoints"]["http"]

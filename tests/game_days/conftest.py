"""A stack of three stores whose AWS can fail, with work on it, and the alarms of a deployment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from day_signals import SERVICES, Alarms, StoreLogs
from day_stack import day_stack
from ordered_stack import OrderedStack
from steady_work import SteadyWork

from headrace.model.certificate_authorities import LEAF_LIFE_S


@pytest.fixture
def stack(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OrderedStack]:
    """A parameter says for how many seconds the first certificates are valid."""
    with day_stack(tmp_path, SERVICES, getattr(request, "param", LEAF_LIFE_S)) as running:
        yield running


@pytest.fixture
def work(stack: OrderedStack) -> SteadyWork:
    """Work that has begun; the test ends it."""
    work = SteadyWork(stack.url)
    work.begin()
    return work


@pytest.fixture
def logs(stack: OrderedStack) -> StoreLogs:
    return StoreLogs(stack.directory)


@pytest.fixture(scope="session")
def alarms() -> Alarms:
    return Alarms()

"""A small deployment on an emulator of AWS: its table, a copy of it, and its bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from emulated_aws import emulated_aws
from restore_world import RestoreWorld

from headrace.local.resources import aws_environment


@pytest.fixture(scope="session")
def aws_endpoint() -> Iterator[str]:
    """The address of an AWS emulator on loopback; it ends with the tests."""
    with emulated_aws() as endpoint:
        yield endpoint


@pytest.fixture
def world(aws_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestoreWorld]:
    """A deployment that was copied, and has gone on since."""
    for name, value in aws_environment(aws_endpoint).items():
        monkeypatch.setenv(name, value)
    assert os.environ["AWS_ENDPOINT_URL"] == aws_endpoint
    world = RestoreWorld()
    yield world
    world.close()

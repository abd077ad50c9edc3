"""Fixtures of the control plane in memory, for the conftests of services and workflows."""

from __future__ import annotations

from types import ModuleType

import pytest
import stream_world as stream_world_module


@pytest.fixture(scope="session")
def stream_world() -> ModuleType:
    """The module `stream_world`: `StreamWorld`, `Crash`, `ranges`, `segment`."""
    return stream_world_module


@pytest.fixture
def world() -> stream_world_module.StreamWorld:
    """A fresh `StreamWorld`."""
    return stream_world_module.StreamWorld()

"""The control plane in memory."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_NAME = "headrace_tests_stream_world"


def _stream_world() -> ModuleType:
    if _NAME not in sys.modules:
        path = Path(__file__).parents[1] / "workflows" / "stream_world.py"
        spec = importlib.util.spec_from_file_location(_NAME, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = module
        spec.loader.exec_module(module)
    return sys.modules[_NAME]


@pytest.fixture(scope="session")
def stream_world() -> ModuleType:
    """The module `stream_world`: `StreamWorld`, `Crash`, `ranges`, `segment`."""
    return _stream_world()


@pytest.fixture
def world(stream_world: ModuleType) -> Any:
    """A fresh `StreamWorld`."""
    return stream_world.StreamWorld()

"""What tests may not do to compiled modules: replace their functions, methods and constants.

Compiled code calls its functions directly and has the values of its constants in it. So a replacement is refused, or
has no effect. A test that replaces something is skipped where that is compiled; it runs where all is interpreted.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Final

import pytest

_REFUSALS: Final = ((AttributeError, "is read-only"), (TypeError, "interpreted classes cannot inherit from compiled"))
"""How compiled code refuses to have the method of an object, or of a class, replaced: the ends of the messages."""


def skip_replacements() -> None:
    """From now on `setattr` of pytest's `monkeypatch` skips a test that replaces a part of a compiled module."""
    replace = pytest.MonkeyPatch.setattr

    def checked(patch: pytest.MonkeyPatch, target: object, *arguments: object, **options: bool) -> None:
        module = _module_of(target)
        if module is not None and module.__name__.startswith("headrace.") and is_compiled_file(module.__file__):
            pytest.skip(f"replaces a part of {module.__name__}, which is compiled")
        replace(patch, target, *arguments, **options)  # type: ignore[call-overload]

    pytest.MonkeyPatch.setattr = checked  # type: ignore[assignment, method-assign]


def skip_refused_replacement(error: Exception) -> None:
    """Skip the test if the error is how compiled code refuses a replacement."""
    if any(isinstance(error, kind) and str(error).endswith(end) for kind, end in _REFUSALS):
        pytest.skip(f"replaces a method, which is compiled: {error}")


def is_compiled_file(file: str | None) -> bool:
    return file is not None and not file.endswith(".py")


def _module_of(target: object) -> ModuleType | None:
    """The module that `target` (a module, a class, an object or the dotted name of one) is from, if it is imported."""
    if isinstance(target, ModuleType):
        return target
    if isinstance(target, str):
        name = target
        while name and name not in sys.modules:
            name = name.rpartition(".")[0]
        return sys.modules.get(name)
    return sys.modules.get(target.__module__ if isinstance(target, type) else type(target).__module__)

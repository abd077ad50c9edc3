"""Imports at the first use, so that a program only loads the parts of the client that it uses.

A request to the controller needs a tenth of the client's modules. The others cost 0.2 s of processor time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


def lazy_names(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module that has names of other modules. `homes`: the module of each name."""

    def import_name(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])
        value = getattr(import_module(home), name)
        setattr(sys.modules[module], name, value)
        return value

    return import_name


class lazy_part(Generic[T]):
    """An attribute that is made at its first use. Unlike `cached_property`, it is the same for all threads."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> lazy_part[T]: ...

    @overload
    def __get__(self, owner: object, kind: type) -> T: ...

    def __get__(self, owner: object | None, kind: type) -> lazy_part[T] | T:
        if owner is None:
            return self
        made: T = vars(owner).setdefault(self._name, self._make(owner))
        return made

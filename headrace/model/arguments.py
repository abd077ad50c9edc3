"""Checks the arguments of public calls against their annotations: one place, and one form of message.

A wrong argument would otherwise be accepted without effect, or fail far from the call with an error of Python. Values
that only the called function can judge, for example names, are checked there.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields
from enum import Enum
from numbers import Integral
from types import FunctionType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from headrace.model.errors import InvalidRequestError

C = TypeVar("C", bound=type)

_SHOWN_CHARACTERS_MAX = 200
_TIMES = ("timeout_s", "retry_s", "give_up_after_s", "time_resolution_s")
"""Parameters that are durations: not negative."""

_TEXT_LIKE = (str, bytes, bytearray, memoryview)


def checked_calls(*unchecked: str) -> Callable[[C], C]:
    """Makes the public methods of a class check their arguments. Those that are `unchecked` do so themselves."""

    def decorate(kind: C) -> C:
        for name, member in list(vars(kind).items()):
            if name not in unchecked and isinstance(member, FunctionType) and not name.startswith("_"):
                setattr(kind, name, checked(member))
        return kind

    return decorate


def checked(function: Any, name: str | None = None) -> Any:
    """Returns the method with a check of its arguments. They are read from the annotations at the first call."""
    parameters = [
        parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "self"
    ]
    positional = [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]

    @functools.cache
    def hints() -> dict[str, Any]:
        return {
            parameter.name: hint for parameter in parameters if (hint := _hint(function, parameter.name)) is not None
        }

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        known = hints()
        for parameter, value in (*zip(positional, args, strict=False), *kwargs.items()):
            if parameter in known:
                check_argument(f"{function.__qualname__}: {parameter}", value, known[parameter])

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def checked_coroutine(self: Any, *args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return await function(self, *args, **kwargs)

        return checked_coroutine

    @functools.wraps(function)
    def checked_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        return function(self, *args, **kwargs)

    return checked_function


def check_fields(value: Any) -> None:
    """Checks the fields of a dataclass or of a document, for its `__post_init__`."""
    kind: Any = type(value)
    hints = _hints_of_class(kind)
    names = getattr(kind, "__struct_fields__", None) or [field.name for field in fields(kind)]
    for name in names:
        check_argument(f"{kind.__name__}: {name}", getattr(value, name), hints[name])


def check_argument(name: str, value: Any, hint: Any) -> None:
    """Raises InvalidRequestError, code "invalid_argument", if the value is not what the annotation says."""
    if not _accepts(hint, value):
        raise _invalid(name, value, f"must be {_wanted(hint)}")
    if name.endswith(_TIMES) and value is not None and not value >= 0:
        raise _invalid(name, value, "must be a number of seconds from 0 on")


def _invalid(name: str, value: Any, wanted: str) -> InvalidRequestError:
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS_MAX:
        shown = shown[:_SHOWN_CHARACTERS_MAX] + "..."
    return InvalidRequestError(
        f"{name} is {shown} ({type(value).__name__}), but {wanted}", code="invalid_argument", details={"argument": name}
    )


@functools.cache
def _hints_of_class(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _hint(function: Any, parameter: str) -> Any:
    """The type of a parameter; None if it has none, or if it names what is only imported for type checks.

    The module's `__getattr__` may import what the annotation names.
    """
    text = function.__annotations__.get(parameter)
    annotated = type("_Annotated", (), {"__annotations__": {parameter: text}, "__module__": function.__module__})
    names: dict[str, Any] = {}
    while text is not None:
        try:
            return get_type_hints(annotated, function.__globals__, names)[parameter]
        except NameError as error:
            imported = getattr(sys.modules.get(function.__module__), error.name or "", None)
            if imported is None or error.name is None or error.name in names:
                return None
            names[error.name] = imported
    return None


def _accepts(hint: Any, value: Any) -> bool:
    origin = get_origin(hint)
    if hint is None or hint is NoneType:
        return value is None
    if origin in (Union, UnionType):
        return any(_accepts(arg, value) for arg in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(arg) and value == arg for arg in get_args(hint))
    if origin is not None:
        return _accepts_generic(origin, get_args(hint), value)
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, Integral | float) and not isinstance(value, bool) and _is_number(value)
    if hint in (Iterable, Sequence):
        return _accepts_generic(hint, (), value)
    if hint is Any or not isinstance(hint, type) or getattr(hint, "_is_protocol", False):
        return True
    return isinstance(value, hint)


def _is_number(value: Any) -> bool:
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer that is too large for a float
        return False


def _accepts_generic(origin: Any, arguments: tuple[Any, ...], value: Any) -> bool:
    if not isinstance(origin, type) or getattr(origin, "_is_protocol", False):
        return True
    if issubclass(origin, Mapping):
        key, item = arguments
        return isinstance(value, Mapping) and all(_accepts(key, k) and _accepts(item, v) for k, v in value.items())
    if origin is tuple and Ellipsis not in arguments:
        pairs = zip(arguments, value, strict=False) if isinstance(value, Sequence) else ()
        return isinstance(value, Sequence) and len(value) == len(arguments) and all(_accepts(h, v) for h, v in pairs)
    if issubclass(origin, Iterable) and origin is not Iterator:
        if isinstance(value, _TEXT_LIKE) or not isinstance(value, Iterable):
            return False
        if isinstance(value, Mapping) or (issubclass(origin, Sequence) and isinstance(value, Set)):
            return False
        if issubclass(origin, Sequence) and isinstance(value, Iterator):
            return False
        items = value if isinstance(value, Sequence | Set) else ()  # others can perhaps be read once only
        return not arguments or all(_accepts(arguments[0], item) for item in items)
    return isinstance(value, origin)


def _wanted(hint: Any) -> str:
    """The annotation in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is None or hint is NoneType:
        return "None"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_wanted, arguments)))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(f"{hint.__name__}.{each.name}" for each in hint)
    if origin is not None and arguments:
        of = ", ".join(_wanted(argument) for argument in arguments if argument is not Ellipsis)
        return f"a {getattr(origin, '__name__', origin)} of {of}"
    if hint is float:
        return "a number"
    return f"{getattr(hint, '__name__', hint)}"

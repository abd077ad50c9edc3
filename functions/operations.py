"""One operation of the HTTP API: its route, its parameters and documents, read from the handler's annotations.

A handler's parameter is the value of the path's `<name>`, a parameter of the query (`QueryParameter`), or the body.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from headrace.model.documents import Document, unknown_fields
from headrace.model.errors import InvalidRequestError

_WHERE = re.compile(r" - at `(?:key` in `)?\$(?P<path>[^`]*)`$")
_NAMED_FIELD = re.compile(r"^Object missing required field `(?P<name>.*)`$", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_PROBLEMS_SHOWN_MAX = 10
_WHOLE_NUMBER = re.compile("-?[0-9]{1,19}")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class PathParameter(msgspec.Struct, frozen=True):
    """How the value of a path parameter is read. `read` raises InvalidRequestError."""

    description: str
    read: Callable[[str], Any]


class QueryParameter(msgspec.Struct, frozen=True):
    """A parameter of the query; `name` is its name in the URL, if that is not the handler's.

    A query has no null. One that is None for the handler was left out.
    """

    description: str
    name: str | None = None


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a handler, and the type that its text becomes.

    `default` is `inspect.Parameter.empty` if there is none.
    """

    name: str
    type: Any
    default: Any
    declared: PathParameter | QueryParameter | None

    @property
    def shown_name(self) -> str:
        """Its name in the URL."""
        return (isinstance(self.declared, QueryParameter) and self.declared.name) or self.name


class Operation(msgspec.Struct, frozen=True, dict=True):
    """A route with its handler. A handler that returns None answers 204, any other `status`."""

    method: str
    path: str
    handler: Callable[..., Document | None]
    summary: str
    tags: Sequence[str]
    status: int = HTTPStatus.OK
    descriptions: Mapping[int, str] = msgspec.field(default_factory=dict)

    @functools.cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        hints = get_type_hints(self.handler, include_extras=True)
        signature = inspect.signature(self.handler).parameters.values()
        return tuple(_parameter(each.name, hints[each.name], each.default) for each in signature)

    @functools.cached_property
    def answers(self) -> dict[int, tuple[type[Document], ...]]:
        """The documents of each status."""
        returned = get_type_hints(self.handler)["return"]
        kinds = get_args(returned) if get_origin(returned) in (Union, UnionType) else (returned,)
        documents = tuple(kind for kind in kinds if kind is not NoneType)
        with_document = {int(self.status): documents} if documents else {}
        return with_document | ({int(HTTPStatus.NO_CONTENT): ()} if NoneType in kinds else {})

    def declared_parts(self, query: Mapping[str, str], body: Any) -> tuple[dict[str, str], Any]:
        """The parts of a request that the handler reads: parameters of the query, and the body or None.

        A handler ignores all other parts, which may be anything, such as the signature of a presigned URL.
        """
        names = {
            parameter.shown_name for parameter in self.parameters if isinstance(parameter.declared, QueryParameter)
        }
        reads_body = any(parameter.declared is None for parameter in self.parameters)
        return {name: value for name, value in query.items() if name in names}, body if reads_body else None

    def call(self, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Document | None:
        """The handler's answer to a request.

        Raises:
            InvalidRequestError: a parameter or the body is not what the handler declares.
        """
        return self.handler(**{parameter.name: _value(parameter, path, query, body) for parameter in self.parameters})


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    declared = next((extra for extra in extras if isinstance(extra, PathParameter | QueryParameter)), None)
    if declared is None:
        return Parameter(name, hint, default, None)
    kept = tuple(extra for extra in extras if extra is not declared)
    bare = get_args(hint)[0]
    if get_origin(bare) in (Union, UnionType):
        bare = Union[tuple(kind for kind in get_args(bare) if kind is not NoneType)]  # noqa: UP007  # of a tuple
    return Parameter(name, Annotated[(bare, *kept)] if kept else bare, default, declared)


def _value(parameter: Parameter, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Any:
    declared = parameter.declared
    if declared is None:
        return read_body(body, parameter.type)
    if isinstance(declared, PathParameter):
        return declared.read(path[parameter.name])
    given = query.get(parameter.shown_name)
    if given is not None:
        return _query_value(given, parameter.type, ("query", parameter.shown_name))
    if parameter.default is inspect.Parameter.empty:
        raise _invalid([(("query", parameter.shown_name), "is missing")])
    return parameter.default


def _query_value(given: str, kind: Any, where: tuple[str, ...]) -> Any:
    """The value of a text. msgspec alone also reads `1e2` and `1.0` as numbers, and `-0` as a boolean."""
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if bare is bool:
        if given.lower() not in _BOOLEANS:
            raise _invalid([(where, "must be true or false")])
        return _BOOLEANS[given.lower()]
    if bare is int:
        if not _WHOLE_NUMBER.fullmatch(given):
            raise _invalid([(where, "must be a whole number in at most 19 decimal digits")])
        return _converted(int(given), kind, where)
    return _converted(given, kind, where)


def read_body(body: Any, kind: Any) -> Any:
    """The body, which is parsed JSON or None without one, as a document.

    Raises:
        InvalidRequestError: a field is missing, unknown, or has a value of another type or beyond its limits.
    """
    if body is None:
        raise _invalid([(("body",), "is missing")])
    value = _converted(body, kind, ("body",))
    if unknown := list(unknown_fields(body, value)):
        raise _invalid([(("body", *path), "is unknown") for path in unknown])
    return value


def _converted(given: Any, kind: Any, where: tuple[str, ...]) -> Any:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _invalid([_problem(str(error), kind, where)]) from error
    except UnicodeEncodeError as error:  # msgspec compares names and constants as UTF-8
        raise _invalid([(where, "has text that is not Unicode")]) from error


def _problem(text: str, kind: Any, where: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], str]:
    """Where a value is wrong, and what it must be. The value itself is not shown: it may be a secret."""
    place = _WHERE.search(text)
    problem = text if place is None else text[: place.start()]
    steps = [each[1] or each[2] for each in _STEP.finditer(place["path"])] if place else []
    if missing := _NAMED_FIELD.match(problem):
        return (*where, *steps, missing["name"]), "is missing"
    if problem.startswith("Invalid enum value"):
        allowed = _allowed_values(kind, steps)
        return (*where, *steps), f"must be {' or '.join(map(str, allowed))}" if allowed else "is not an allowed value"
    return (*where, *steps), problem[:1].lower() + problem[1:].replace("`", "")


def _allowed_values(kind: Any, steps: Sequence[str]) -> list[Any]:
    """The values of the enumeration at a place in a document; empty if there is none."""
    from msgspec import inspect as types  # only for the answer to a mistake: it takes milliseconds to import

    def inner(declared: Any, step: str) -> Iterator[Any]:
        if isinstance(declared, types.UnionType):
            for part in declared.types:
                yield from inner(part, step)
        elif isinstance(declared, types.Metadata):
            yield from inner(declared.type, step)
        elif isinstance(declared, types.StructType):
            yield from (each.type for each in declared.fields if each.encode_name == step)
        elif isinstance(declared, types.ListType | types.VarTupleType):
            yield declared.item_type
        elif isinstance(declared, types.DictType):
            yield declared.value_type

    reached = [types.type_info(kind)]
    for step in steps:
        reached = [each for outer in reached for each in inner(outer, step)]
    allowed: list[Any] = []
    while reached:
        declared = reached.pop()
        if isinstance(declared, types.UnionType):
            reached += declared.types
        elif isinstance(declared, types.Metadata):
            reached.append(declared.type)
        elif isinstance(declared, types.EnumType):
            allowed += [each.value for each in declared.cls]
        elif isinstance(declared, types.LiteralType):
            allowed += declared.values
    return allowed


def _invalid(problems: Sequence[tuple[tuple[str | int, ...], str]]) -> InvalidRequestError:
    """An error that names the field and the problem of each mistake."""
    named = [{"field": _field(path), "problem": problem} for path, problem in problems]
    shown = named[:_PROBLEMS_SHOWN_MAX]
    text = "; ".join(f"{each['field']}: {each['problem']}" for each in shown)
    more = f"; and {len(named) - len(shown)} more" if len(named) > len(shown) else ""
    return InvalidRequestError(f"the request is not valid: {text}{more}", details={"problems": shown})


def _field(path: tuple[str | int, ...]) -> str:
    return ".".join(ascii(str(part))[1:-1][:100] for part in path)

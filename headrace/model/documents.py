"""JSON documents: a class declares the fields once, with their names in JSON, their limits and their descriptions.

The controller writes and reads them, the client reads and writes them, and the OpenAPI document shows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

import msgspec

D = TypeVar("D", bound="Document")


def json_name(name: str) -> str:
    """The name of a field in JSON: `lease_end_ms` is `leaseEnd`. The API's times are all in milliseconds."""
    first, *more = name.removesuffix("_ms").split("_")
    return first + "".join(word.capitalize() for word in more)


class Document(msgspec.Struct, frozen=True, rename=json_name):
    """The base class of JSON objects. A field whose name in JSON is another one has `field(name=...)`."""

    @classmethod
    def from_json(cls: type[D], document: Mapping[str, Any]) -> D:
        """Parses the JSON of an answer. Unknown fields are ignored: a newer controller has them.

        Raises:
            ValueError: a field is missing, or has a value of another type or beyond its limits.
        """
        return msgspec.convert(document, cls, str_keys=True)

    def to_json(self) -> dict[str, Any]:
        """The JSON with all fields."""
        fields: dict[str, Any] = msgspec.to_builtins(self, str_keys=True, enc_hook=plain_value)
        return fields

    def fields(self) -> dict[str, Any]:
        """The fields by their names in Python, for the constructor of a class that has more."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def part(self, base: type[D]) -> D:
        """The fields of a base class as a value of that class."""
        return base(**{name: getattr(self, name) for name in base.__struct_fields__})


def plain_value(value: Any) -> int | float | str:
    """A number or text of a library such as numpy as one of Python. Raises TypeError for other objects."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not a value of JSON")


def about(text: str) -> msgspec.Meta:
    """The description of a field, for its annotation."""
    return msgspec.Meta(description=text)


def unknown_fields(document: Any, value: Any) -> Iterator[tuple[str | int, ...]]:
    """The paths of the fields of `document` that are none of `value`, which was parsed from it.

    Arrays of documents are searched. Others may have changed: a constructor sorts tags and drops repeated ones.
    """
    if isinstance(value, msgspec.Struct):
        names = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
        for name, inner in document.items():
            if name not in names:
                yield (name,)
            else:
                yield from ((name, *path) for path in unknown_fields(inner, getattr(value, names[name])))
    elif isinstance(value, tuple) and all(isinstance(each, msgspec.Struct) for each in value):
        for index, (inner, part) in enumerate(zip(document, value, strict=True)):
            yield from ((index, *path) for path in unknown_fields(inner, part))

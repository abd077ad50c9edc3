"""The base class of all wire commands, and the table of commands by type code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar, Final, TypeVar, dataclass_transform

from headrace.wire.fields import Layout

_TOKEN: Final = "delegation_token"


class WireCommand:
    """A wire command. Its fields, in order, are its payload."""

    __slots__ = ()
    TYPE: ClassVar[int]


LAYOUTS: dict[type[WireCommand], Layout] = {}
LAYOUTS_BY_TYPE: dict[int, Layout] = {}

K = TypeVar("K", bound=WireCommand)


@dataclass_transform(frozen_default=True)
def command(type_code: int, *, optional_from: str | None = None) -> Callable[[type[K]], type[K]]:
    """Make the class a frozen dataclass for the command with this type code, and add it to the table.

    `optional_from` is the name of the first trailing field that older peers do not send.
    """

    def declare(kind: type[K]) -> type[K]:
        if _TOKEN in kind.__annotations__:  # a token opens segments to its reader, so it must not be in logs
            shown: Any = field(default=vars(kind).get(_TOKEN, MISSING), repr=False)
            setattr(kind, _TOKEN, shown)
        declared = dataclass(frozen=True, slots=True)(kind)
        declared.TYPE = type_code
        if type_code in LAYOUTS_BY_TYPE:
            raise TypeError(f"wire command type {type_code} is declared twice")
        LAYOUTS[declared] = LAYOUTS_BY_TYPE[type_code] = Layout(declared, optional_from)
        return declared

    return declare

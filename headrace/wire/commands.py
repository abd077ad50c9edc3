"""What every command of the wire protocol shares: its type code and its place in the table of all commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar, dataclass_transform

from headrace.wire.fields import Layout


class WireCommand:
    """One command. Its fields, in order, are its payload."""

    __slots__ = ()
    TYPE: ClassVar[int]


LAYOUTS: dict[type[WireCommand], Layout] = {}
LAYOUTS_BY_TYPE: dict[int, Layout] = {}

K = TypeVar("K", bound=WireCommand)


@dataclass_transform(frozen_default=True)
def command(type_code: int, *, optional_from: str | None = None) -> Callable[[type[K]], type[K]]:
    """Makes a class the frozen dataclass of the command with this type code and enters it in the table.

    `optional_from` names the first of the trailing fields that older peers do not send.
    """

    def declare(kind: type[K]) -> type[K]:
        declared = dataclass(frozen=True, slots=True)(kind)
        declared.TYPE = type_code
        if type_code in LAYOUTS_BY_TYPE:
            raise TypeError(f"wire command type {type_code} is declared twice")
        LAYOUTS[declared] = LAYOUTS_BY_TYPE[type_code] = Layout(declared, optional_from)
        return declared

    return declare

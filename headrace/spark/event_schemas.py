"""The schema of JSON events, from text in Spark's DDL: types, their names in Spark, and a strict parser. Pure.

Only types that have one obvious form in JSON are allowed. Spark's own parser is not used, because options are checked
in processes without a JVM, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

from headrace.model.errors import InvalidRequestError

SCHEMA_CHARS_MAX: Final = 64 * 1024
FIELDS_MAX: Final = 2000
"""Of a schema with all of its structs."""

TYPE_NESTING_MAX: Final = 16
PRECISION_MAX: Final = 38
PRECISION_DEFAULT: Final = 10

SCALAR_TYPES: Final = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
)
_ALIASES: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
}
_TOKEN: Final = re.compile(r"\s*(?:(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<mark>[<>(),:]))")


@dataclass(frozen=True, slots=True)
class ScalarType:
    """One of SCALAR_TYPES."""

    name: str

    def __str__(self) -> str:
        return self.name

    def ddl(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class DecimalType:
    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"

    def ddl(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class ArrayType:
    element: EventType

    def __str__(self) -> str:
        return f"array<{self.element}>"

    def ddl(self) -> str:
        return f"array<{self.element.ddl()}>"


@dataclass(frozen=True, slots=True)
class MapType:
    """The keys are strings, as in a JSON object."""

    value: EventType

    def __str__(self) -> str:
        return f"map<string,{self.value}>"

    def ddl(self) -> str:
        return f"map<string,{self.value.ddl()}>"


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: EventType


@dataclass(frozen=True, slots=True)
class StructType:
    """Named fields in their order; also the schema as a whole. Each field may be null or missing in an event.

    `str` is the text that Spark calls the simple string of a type, `ddl` quotes the names.
    """

    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return f"struct<{','.join(f'{field.name}:{field.type}' for field in self.fields)}>"

    def ddl(self) -> str:
        return f"struct<{', '.join(f'{quoted_name(field.name)}: {field.type.ddl()}' for field in self.fields)}>"


EventType = ScalarType | DecimalType | ArrayType | MapType | StructType


def quoted_name(name: str) -> str:
    """The name of a column in Spark's DDL, or as a DataFrame looks it up; it may have any characters."""
    return "`" + name.replace("`", "``") + "`"


def parse_event_schema(text: str) -> StructType:
    """The schema of a text like `id bigint, price decimal(10,2), tags array<string>, place struct<lat: double>`.

    Raises:
        InvalidRequestError: the text is not a schema, a type is not allowed, or a name occurs twice in a struct. Spark
            ignores the case of names, so names that differ only in case are the same.
    """
    if len(text) > SCHEMA_CHARS_MAX:
        raise _invalid(f"it has {len(text)} characters, more than {SCHEMA_CHARS_MAX}")
    parser = _Parser(list(_tokens(text)))
    fields = parser.fields(1)
    if parser.next is not None:
        parser.refuse("a comma or the end")
    return StructType(fields)


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    is_mark: bool = False
    is_quoted: bool = False


def _tokens(text: str) -> Iterator[_Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at, end)
        if match is None:
            raise _invalid(f"{text[at : at + 20].strip()!r} is neither a name nor a type; quote a name as `name`")
        at = match.end()
        if match["word"] is not None:
            yield _Token(match["word"])
        elif match["mark"] is not None:
            yield _Token(match["mark"], is_mark=True)
        else:
            yield _Token(match["quoted"].replace("``", "`"), is_quoted=True)


class _Parser:
    """Reads the tokens once, from left to right."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._fields = 0

    @property
    def next(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def fields(self, depth: int) -> tuple[Field, ...]:
        """Fields with commas between them; a colon between name and type may be left out."""
        fields: dict[str, Field] = {}
        while True:
            name = self._name()
            if name.lower() in fields:
                raise _invalid(f"the field {name!r} is given twice; Spark ignores the case of names")
            self._take(":")
            fields[name.lower()] = Field(name, self._type(depth))
            self._fields += 1
            if self._fields > FIELDS_MAX:
                raise _invalid(f"it has more than {FIELDS_MAX} fields")
            if not self._take(","):
                return tuple(fields.values())

    def refuse(self, expected: str) -> NoReturn:
        got = "the end" if self.next is None else repr(self.next.text[:50])
        if self.next is not None and self.next.text.lower() in ("not", "comment", "default"):
            raise _invalid(f"{got} is not supported: a field has a name and a type only, and may always be null")
        raise _invalid(f"there is {got} in the place of {expected}")

    def _type(self, depth: int) -> EventType:
        if depth > TYPE_NESTING_MAX:
            raise _invalid(f"types are nested more than {TYPE_NESTING_MAX} deep")
        token = self.next
        if token is None or token.is_mark or token.is_quoted:
            self.refuse("a type")
        self._at += 1
        name = _ALIASES.get(token.text.lower(), token.text.lower())
        if name in SCALAR_TYPES:
            return ScalarType(name)
        if name == "decimal":
            return self._decimal()
        if name == "array":
            return ArrayType(self._in_brackets(depth))
        if name == "map":
            return self._map(depth)
        if name == "struct":
            self._need("<")
            fields = self.fields(depth + 1)
            self._need(">")
            return StructType(fields)
        allowed = ", ".join((*SCALAR_TYPES, "decimal(p,s)", "array<...>", "map<string,...>", "struct<...>"))
        raise _invalid(f"{token.text[:50]!r} is not a type of a JSON event; there are {allowed}")

    def _decimal(self) -> DecimalType:
        precision, scale = PRECISION_DEFAULT, 0
        if self._take("("):
            precision = self._number()
            if self._take(","):
                scale = self._number()
            self._need(")")
        if not 1 <= precision <= PRECISION_MAX or scale > precision:
            raise _invalid(
                f"decimal({precision},{scale}) does not exist: a decimal has 1 to {PRECISION_MAX} digits,"
                " of which at most all are behind the point"
            )
        return DecimalType(precision, scale)

    def _in_brackets(self, depth: int) -> EventType:
        self._need("<")
        element = self._type(depth + 1)
        self._need(">")
        return element

    def _map(self, depth: int) -> MapType:
        self._need("<")
        if self._type(depth + 1) != ScalarType("string"):
            raise _invalid("the keys of a map are strings, since those of a JSON object are: write map<string,...>")
        self._need(",")
        value = self._type(depth + 1)
        self._need(">")
        return MapType(value)

    def _name(self) -> str:
        token = self.next
        if token is None or token.is_mark:
            self.refuse("the name of a field")
        self._at += 1
        return token.text

    def _number(self) -> int:
        token = self.next
        if token is None or not re.fullmatch(r"[0-9]{1,3}", token.text):
            self.refuse("a number of digits")
        self._at += 1
        return int(token.text)

    def _take(self, mark: str) -> bool:
        """Whether the mark was next; then it is passed."""
        token = self.next
        if token is None or not token.is_mark or token.text != mark:
            return False
        self._at += 1
        return True

    def _need(self, mark: str) -> None:
        if not self._take(mark):
            self.refuse(repr(mark))


def _invalid(problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the schema cannot be used: {problem}. Give names and types like 'id bigint, tags array<string>'",
        code="invalid_schema",
    )

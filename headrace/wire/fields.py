"""The vocabulary in which commands are declared: the layout of each kind of field in a payload, and all commands.

A command is a struct whose annotations are the aliases at the end of this module (`I64`, `Text`, `Data`...); a
`Layout` turns the annotations into a few reading and writing steps, in which neighbouring fields of fixed size become
one `struct`. Everything is big-endian. Lengths are checked against what is there before anything is sliced, and
payload data is sliced, never copied. Text is strict UTF-8, as the Rust client has it (Java's modified UTF-8 differs
only for U+0000 and beyond the BMP, which no name contains).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from struct import Struct
from typing import Annotated, Any, ClassVar, Final, Protocol, TypeVar, get_type_hints

import msgspec
from msgspec import NODEFAULT

from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.model.limits import SEGMENT_NAME_BYTES_MAX

Buffer = bytes | bytearray | memoryview
_UINT16 = Struct(">H")
_INT32 = Struct(">i")
_EVENT_HEADER = Struct(">ii")
_EVENT_TYPE = 0
TEXT_BYTES_MIN = _UINT16.size
_TEXT_BYTES_MAX = 0xFFFF
_TOKEN_BYTES_MAX = 256
_UUID_BYTES = 16


class WireFormatError(CorruptError):
    """Received bytes are no frame of the wire protocol: the connection cannot be trusted any more."""

    code = "wire_format"


class Sink:
    """Collects the parts of one payload: it counts bytes, joins adjacent small parts, and does not copy data."""

    __slots__ = ("_small", "length_bytes", "parts")

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self.length_bytes = 0
        self._small: list[bytes] = []

    def put(self, small: bytes) -> None:
        self._small.append(small)
        self.length_bytes += len(small)

    def put_data(self, data: Buffer) -> None:
        """Add data without its length."""
        self.flush()
        self.parts.append(data)
        self.length_bytes += len(data)

    def put_counted_data(self, data: Buffer) -> None:
        """Add data, preceded by its length."""
        self.put(_INT32.pack(len(data)))
        self.put_data(data)

    def flush(self) -> None:
        """Move the pending small parts to `parts`, even if there are none, so that small and data parts alternate."""
        self.parts.append(b"".join(self._small))
        self._small.clear()


class Step(Protocol):
    """Reads or writes one or more neighbouring fields. `bytes_min` is the least that must remain to read it."""

    bytes_min: int
    count: int

    def read(self, payload: memoryview, position: int, values: list[Any]) -> int: ...

    def write(self, values: Sequence[Any], sink: Sink) -> None: ...


class Fixed(msgspec.Struct, frozen=True):
    """A field of fixed size: its `struct` format and, where the value is not a plain number, the conversions."""

    format: str
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None


class FixedRun:
    """Adjacent fields of fixed size as one struct."""

    def __init__(self, run: Sequence[Fixed]) -> None:
        self._struct = Struct(">" + "".join(field.format for field in run))
        self._reads = [(index, field.read) for index, field in enumerate(run) if field.read]
        self._writes = [(index, field.write) for index, field in enumerate(run) if field.write]
        self.bytes_min = self._struct.size
        self.count = len(run)

    def read(self, payload: memoryview, position: int, values: list[Any]) -> int:
        end = position + self.bytes_min
        if end > len(payload):
            raise WireFormatError(f"a frame of {len(payload)} bytes ends inside a field: {end} bytes are needed")
        first = len(values)
        values.extend(self._struct.unpack_from(payload, position))
        for index, convert in self._reads:
            values[first + index] = convert(values[first + index])
        return end

    def write(self, values: Sequence[Any], sink: Sink) -> None:
        if self._writes:
            values = list(values)
            for index, convert in self._writes:
                values[index] = convert(values[index])
        sink.put(self._struct.pack(*values))


class TextStep:
    """u16 length and UTF-8, of at most `bytes_max` bytes."""

    bytes_min = _UINT16.size
    count = 1

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max

    def read(self, payload: memoryview, position: int, values: list[Any]) -> int:
        text, position = read_text(payload, position, self.bytes_max)
        values.append(text)
        return position

    def write(self, values: Sequence[Any], sink: Sink) -> None:
        write_text(values[0], sink, self.bytes_max)


class CountedDataStep:
    """i32 length and bytes, handed out as a view of the payload."""

    bytes_min = _INT32.size
    count = 1

    def read(self, payload: memoryview, position: int, values: list[Any]) -> int:
        length, position = _read_int32(payload, position)
        end = _end_of(payload, position, length)
        values.append(payload[position:end])
        return end

    def write(self, values: Sequence[Any], sink: Sink) -> None:
        sink.put_counted_data(values[0])


class TokenStep:
    """i32 length and a few bytes, copied: a stored token does not keep its command's data in memory."""

    bytes_min = _INT32.size
    count = 1

    def read(self, payload: memoryview, position: int, values: list[Any]) -> int:
        length, position = _read_int32(payload, position)
        end = _end_of(payload, position, length)
        if length > _TOKEN_BYTES_MAX:
            raise WireFormatError(f"a token of {length} bytes is none of ours: at most {_TOKEN_BYTES_MAX}")
        values.append(bytes(payload[position:end]))
        return end

    def write(self, values: Sequence[Any], sink: Sink) -> None:
        sink.put(_INT32.pack(len(values[0])) + values[0])


class RestStep:
    """All bytes up to the end of the frame."""

    bytes_min = 0
    count = 1

    def read(self, payload: memoryview, position: int, values: list[Any]) -> int:
        values.append(payload[position:])
        return len(payload)

    def write(self, values: Sequence[Any], sink: Sink) -> None:
        sink.put_data(values[0])


class EventStep:
    """An event with its 8-byte header; the value is the event without it."""

    bytes_min = _EVENT_HEADER.size
    count = 1

    def read(self, payload: memoryview, position: int, values: list[Any]) -> int:
        kind, position = _read_int32(payload, position)
        if kind != _EVENT_TYPE:
            raise WireFormatError(f"expected an event (type {_EVENT_TYPE}) inside a frame, found type {kind}")
        length, position = _read_int32(payload, position)
        end = _end_of(payload, position, length)
        values.append(payload[position:end])
        return end

    def write(self, values: Sequence[Any], sink: Sink) -> None:
        sink.put(_EVENT_HEADER.pack(_EVENT_TYPE, len(values[0])))
        sink.put_data(values[0])


class ListStep:
    """i32 count and elements, read as a tuple; an element takes at least `element_bytes_min` bytes.

    A list of more than `elements_max` elements is refused before any of them is read: one frame can claim enough of
    them to stop its reader for half a second.
    """

    bytes_min = _INT32.size
    count = 1

    def __init__(
        self,
        elements_max: int,
        element_bytes_min: int,
        read: Callable[[memoryview, int], tuple[Any, int]],
        write: Callable[[Any, Sink], None],
    ) -> None:
        self.elements_max = elements_max
        self._element_bytes_min = element_bytes_min
        self._read = read
        self._write = write

    def read(self, payload: memoryview, position: int, values: list[Any]) -> int:
        count, position = _read_int32(payload, position)
        check_count(count, self.elements_max, (len(payload) - position) // self._element_bytes_min)
        elements = []
        for _ in range(count):
            element, position = self._read(payload, position)
            elements.append(element)
        values.append(tuple(elements))
        return position

    def write(self, values: Sequence[Any], sink: Sink) -> None:
        self.check_written(values[0])
        sink.put(_INT32.pack(len(values[0])))
        for element in values[0]:
            self._write(element, sink)

    def check_written(self, elements: Sequence[Any]) -> None:
        """Raise InvalidRequestError if the list is too long to be sent."""
        if len(elements) > self.elements_max:
            raise InvalidRequestError(f"a list of {len(elements)} elements is too long: at most {self.elements_max}")


def check_count(count: int, elements_max: int, held_max: int) -> None:
    """Raise WireFormatError unless a list may have `count` elements. The rest of its frame can hold `held_max`."""
    if not 0 <= count <= min(elements_max, held_max):
        raise WireFormatError(
            f"a list claims {count} elements: at most {elements_max} are allowed, and its frame can hold {held_max}"
        )


def read_name(payload: memoryview, position: int) -> tuple[str, int]:
    """Read the name of a segment."""
    return read_text(payload, position, SEGMENT_NAME_BYTES_MAX)


def write_name(name: str, sink: Sink) -> None:
    """Write the name of a segment."""
    write_text(name, sink, SEGMENT_NAME_BYTES_MAX)


def read_text(payload: memoryview, position: int, bytes_max: int = _TEXT_BYTES_MAX) -> tuple[str, int]:
    if len(payload) - position < _UINT16.size:
        raise WireFormatError(f"a frame of {len(payload)} bytes ends inside the length of a text")
    (length,) = _UINT16.unpack_from(payload, position)
    if length > bytes_max:
        raise WireFormatError(f"a text in a frame has {length} bytes, at most {bytes_max} are allowed here")
    position += _UINT16.size
    end = _end_of(payload, position, length)
    try:
        return str(payload[position:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise WireFormatError(f"a text in a frame is not UTF-8: {error.reason} at byte {error.start}") from None


def write_text(text: str, sink: Sink, bytes_max: int = _TEXT_BYTES_MAX) -> None:
    encoded = text.encode("utf-8")
    if len(encoded) > bytes_max:
        raise InvalidRequestError(f"a text of {len(encoded)} bytes does not fit its field: at most {bytes_max}")
    sink.put(_UINT16.pack(len(encoded)) + encoded)


def _read_int32(payload: memoryview, position: int) -> tuple[int, int]:
    if len(payload) - position < _INT32.size:
        raise WireFormatError(f"a frame of {len(payload)} bytes ends inside a 4-byte number")
    return _INT32.unpack_from(payload, position)[0], position + _INT32.size


def _end_of(payload: memoryview, position: int, length: int) -> int:
    if not 0 <= length <= len(payload) - position:
        raise WireFormatError(f"a field claims {length} bytes, {len(payload) - position} are left in its frame")
    return position + length


def _read_bool(value: int) -> bool:
    if value > 1:
        raise WireFormatError(f"a yes-or-no field holds {value}, only 0 and 1 are allowed")
    return value == 1


def _read_uuid(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _write_uuid(value: int) -> bytes:
    return value.to_bytes(_UUID_BYTES, "big")


UUID_FIELD = Fixed(f"{_UUID_BYTES}s", _read_uuid, _write_uuid)

I8 = Annotated[int, Fixed("b")]
I32 = Annotated[int, Fixed("i")]
I64 = Annotated[int, Fixed("q")]
Bool = Annotated[bool, Fixed("B", _read_bool, int)]
Uuid = Annotated[int, UUID_FIELD]
Text = Annotated[str, TextStep(_TEXT_BYTES_MAX)]
SegmentName = Annotated[str, TextStep(SEGMENT_NAME_BYTES_MAX)]
Data = Annotated[Buffer, CountedDataStep()]
Token = Annotated[bytes, TokenStep()]
Rest = Annotated[Buffer, RestStep()]
Event = Annotated[Buffer, EventStep()]

C = TypeVar("C")


class Layout:
    """The order of a command's fields in its payload."""

    def __init__(self, command: type[Any], optional_from: str | None) -> None:
        """`optional_from` names the first field that old peers leave out; it and all after it need defaults."""
        names = command.__struct_fields__
        required_count = names.index(optional_from) if optional_from else len(names)
        without_default = (NODEFAULT,) * (len(names) - len(command.__struct_defaults__))
        defaults = dict(zip(names, (*without_default, *command.__struct_defaults__), strict=True))
        for name in names[required_count:]:
            if defaults[name] is NODEFAULT:
                raise TypeError(f"{command.__name__}.{name} may be missing on the wire but has no default")
        hints = get_type_hints(command, include_extras=True)
        declared = [hints[name].__metadata__[0] for name in names]
        self._command = command
        self._names = names
        self._required = _steps(declared[:required_count])
        self._optional = [step for each in declared[required_count:] for step in _steps([each])]
        self._get = attrgetter(*names) if names else None

    def read(self, payload: memoryview) -> Any:
        """Read a command. Bytes after its last field are ignored, and missing optional fields get their defaults."""
        values: list[Any] = []
        position = 0
        for step in self._required:
            position = step.read(payload, position, values)
        for step in self._optional:
            if len(payload) - position < step.bytes_min:
                break
            position = step.read(payload, position, values)
        return self._command(*values)

    def write(self, command: Any, sink: Sink) -> None:
        """Write all fields, the optional ones included."""
        if self._get is None:
            return
        attributes = self._get(command)
        values = attributes if len(self._names) > 1 else (attributes,)
        position = 0
        for steps in (self._required, self._optional):
            for step in steps:
                step.write(values[position : position + step.count], sink)
                position += step.count


def _steps(declared: Sequence[Fixed | Step]) -> list[Step]:
    steps: list[Step] = []
    run: list[Fixed] = []
    for each in declared:
        if isinstance(each, Fixed):
            run.append(each)
            continue
        if run:
            steps.append(FixedRun(run))
            run = []
        steps.append(each)
    if run:
        steps.append(FixedRun(run))
    return steps


# The base class of all wire commands, and the table of commands by type code.

_TOKEN: Final = "delegation_token"


class WireCommand(msgspec.Struct, frozen=True):
    """A wire command. Its fields, in order, are its payload."""

    TYPE: ClassVar[int]

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({', '.join(shown)})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Without the token: it opens segments to its reader, so it must not be in logs."""
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name != _TOKEN]


LAYOUTS: dict[type[WireCommand], Layout] = {}
LAYOUTS_BY_TYPE: dict[int, Layout] = {}

K = TypeVar("K", bound=WireCommand)


def command(type_code: int, *, optional_from: str | None = None) -> Callable[[type[K]], type[K]]:
    """Add the class to the table as the command with this type code.

    `optional_from` is the name of the first trailing field that older peers do not send.
    """

    def declare(declared: type[K]) -> type[K]:
        declared.TYPE = type_code
        if type_code in LAYOUTS_BY_TYPE:
            raise TypeError(f"wire command type {type_code} is declared twice")
        LAYOUTS[declared] = LAYOUTS_BY_TYPE[type_code] = Layout(declared, optional_from)
        return declared

    return declare

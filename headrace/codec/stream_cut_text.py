"""The text form of a stream cut, as Pravega's `StreamCut.asText`.

It is base64 of gzip of `0:scope/stream:numbers:epochs:offsets`. Equal cuts give equal text: the gzip header carries no
time and names no system. Text that comes in is untrusted; its size is bounded before and while it is unpacked.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import STREAM_CUT_PLAIN_BYTES_MAX, STREAM_CUT_TEXT_CHARACTERS_MAX
from headrace.model.segments import segment_epoch, segment_id, segment_number
from headrace.model.stream_cuts import END_OF_SEGMENT, StreamCut, invalid_cut

_VERSION = "0"
_GZIP_HEADER = b"\x1f\x8b\x08" + bytes(7)
_GZIP_TRAILER = struct.Struct("<II")
_GZIP_WINDOW_BITS = 31
_INTEGER_CHARACTERS_MAX = 19
_END = str(END_OF_SEGMENT)


def stream_cut_text(cut: StreamCut) -> str:
    """The text form, with segments in the order of their ids."""
    numbers = ",".join(str(segment_number(identifier)) for identifier, _ in cut.positions)
    epochs = ",".join(str(segment_epoch(identifier)) for identifier, _ in cut.positions)
    offsets = ",".join(str(offset) for _, offset in cut.positions)
    plain = f"{_VERSION}:{cut.scope}/{cut.stream}:{numbers}:{epochs}:{offsets}".encode()
    return base64.b64encode(_gzip(plain)).decode("ascii")


def parse_stream_cut_text(text: str) -> StreamCut:
    """The stream cut that `stream_cut_text` or Pravega wrote.

    Raises:
        InvalidRequestError: code "invalid_stream_cut".
    """
    if len(text) > STREAM_CUT_TEXT_CHARACTERS_MAX:
        raise invalid_cut(f"its text is longer than {STREAM_CUT_TEXT_CHARACTERS_MAX} characters")
    try:
        plain = _gunzip(base64.b64decode(text, validate=True)).decode("ascii")
    except (binascii.Error, zlib.error, ValueError) as error:
        raise invalid_cut(f"its text is not base64 of gzip: {error}") from error
    fields = plain.split(":")
    if len(fields) != 5 or fields[0] != _VERSION or fields[1].count("/") != 1:
        raise invalid_cut("its text does not say 0:scope/stream:numbers:epochs:offsets")
    scope, stream = fields[1].split("/")
    numbers, epochs = (_integers(field) for field in fields[2:4])
    offsets = [END_OF_SEGMENT if part == _END else _integer(part) for part in fields[4].split(",")]
    if not len(numbers) == len(epochs) == len(offsets):
        raise invalid_cut("its text has lists of different lengths")
    try:
        identifiers = [segment_id(epoch, number) for number, epoch in zip(numbers, epochs, strict=True)]
    except InvalidRequestError as error:
        raise invalid_cut(error.message) from error
    return StreamCut(scope, stream, tuple(zip(identifiers, offsets, strict=True)))


def _integers(field: str) -> list[int]:
    return [_integer(part) for part in field.split(",")]


def _integer(part: str) -> int:
    if not (part.isdecimal() and len(part) <= _INTEGER_CHARACTERS_MAX):
        raise invalid_cut("its text holds something that is not a number")
    return int(part)


def _gzip(plain: bytes) -> bytes:
    """Gzip with a header of zeros, as Java writes it: no time, no system."""
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = compressor.compress(plain) + compressor.flush()
    return _GZIP_HEADER + packed + _GZIP_TRAILER.pack(zlib.crc32(plain), len(plain))


def _gunzip(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
    plain = unpacker.decompress(packed, STREAM_CUT_PLAIN_BYTES_MAX)
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"the data is cut off, too long, or unpacks to more than {STREAM_CUT_PLAIN_BYTES_MAX} bytes")
    return plain

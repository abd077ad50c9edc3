"""Compressed payloads of log records: one zstd frame that names its content's size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import zstandard

from headrace.codec.log_record_header import ENTRY_BYTES_MAX
from headrace.model.errors import CorruptError

if TYPE_CHECKING:
    from typing_extensions import Buffer

COMPRESSION_LEVEL: Final = 1
"""The fastest one that saves most: a log is read back only after a failure."""


def compress_payload(parts: Iterable[Buffer], length: int) -> bytes:
    """The parts one after the other, of `length` bytes together, as one compressed payload."""
    compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compressobj(size=length)
    pieces = [compressor.compress(memoryview(part)) for part in parts]
    pieces.append(compressor.flush())
    return b"".join(pieces)


def decompress_payload(payload: bytes | memoryview) -> bytes:
    """The content of a compressed payload.

    Raises:
        CorruptError: it is not a whole zstd frame, or its content is larger than an entry may be.
    """
    try:
        size = zstandard.get_frame_parameters(payload).content_size
        if size > ENTRY_BYTES_MAX:  # also if it is not known
            raise CorruptError(f"a compressed log entry claims {size} bytes, at most {ENTRY_BYTES_MAX} are allowed")
        return zstandard.ZstdDecompressor().decompress(payload, max_output_size=ENTRY_BYTES_MAX)
    except zstandard.ZstdError as error:
        raise CorruptError(f"a compressed log entry cannot be decompressed: {error}") from error

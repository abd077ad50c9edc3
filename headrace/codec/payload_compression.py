"""Compressed payloads of log records: one zstd frame that names its content's size."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headrace.codec.log_record_header import ENTRY_BYTES_MAX
from headrace.model.errors import CorruptError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from typing_extensions import Buffer

COMPRESSION_LEVEL: Final = 1
"""The fastest one that saves most: a log is read back only after a failure."""

_MAGIC: Final = (0xFD2FB528).to_bytes(4, "little")


def compress_payload(parts: Iterable[Buffer], length: int) -> bytes:
    """The parts one after the other, of `length` bytes together, as one compressed payload."""
    compressor = zstd.ZstdCompressor(COMPRESSION_LEVEL)
    compressor.set_pledged_input_size(length)  # the frame names it
    pieces = [compressor.compress(part) for part in parts]
    pieces.append(compressor.flush())
    return b"".join(pieces)


def decompress_payload(payload: bytes | memoryview) -> bytes:
    """The content of a compressed payload.

    Raises:
        CorruptError: it is not a whole zstd frame, or its content is larger than an entry may be.
    """
    decompressor = zstd.ZstdDecompressor()
    try:
        # A frame to be skipped has another number, and no content.
        size = zstd.get_frame_info(payload).decompressed_size if payload[:4] == _MAGIC else None
        if size is None or size > ENTRY_BYTES_MAX:
            claim = "no size" if size is None else f"{size} bytes"
            raise CorruptError(f"a compressed log entry claims {claim}, at most {ENTRY_BYTES_MAX} bytes are allowed")
        content = decompressor.decompress(payload, max_length=size + 1)
    except zstd.ZstdError as error:
        raise CorruptError(f"a compressed log entry cannot be decompressed: {error}") from error
    if not decompressor.eof or decompressor.unused_data:
        raise CorruptError("a compressed log entry is not one whole zstd frame")
    return content

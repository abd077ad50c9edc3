"""Turns the parts of an entry into the payload that all members store: joined, compressed or as it is, with its CRC.

Traffic between zones is what copies cost most, so an owner with members in other zones compresses entries that are
large enough. Whether that pays depends on the data: of the entries that could be compressed, one in SAMPLE_EVERY is a
sample, and decides for those after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from headrace.codec.log_record_header import Codec
from headrace.codec.payload_compression import compress_payload
from headrace.segmentstore.log.journal_commits import JOINED_PART_BYTES_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

COMPRESSED_BYTES_MIN: Final = 4 << 10
"""Smaller entries cost more processor time than they save."""

INLINE_BYTES_MAX: Final = 128 << 10
"""Larger entries are compressed in another thread. The event loop would stand still for more than 0.3 ms."""

SAMPLE_EVERY: Final = 64

PAYS_BELOW: Final = 0.75
"""Compression pays if a sample shrinks to less than this part."""


class EncodedEntry(NamedTuple):
    """A payload in the form in which it travels and is stored."""

    parts: tuple[Buffer, ...]
    length: int
    checksum: int
    codec: Codec
    is_copy: bool
    """Whether the memory of the caller is not needed any more."""


class EntryEncoder:
    """The encoder of one log. `compresses` says whether it may compress at all."""

    def __init__(self, *, compresses: bool) -> None:
        self._compresses = compresses
        self._pays = False
        self._seen = 0

    def wants_compression(self, length: int) -> bool:
        """Whether to compress the next entry. Call it once for each entry."""
        if not self._compresses or length < COMPRESSED_BYTES_MIN:
            return False
        is_sample = self._seen % SAMPLE_EVERY == 0
        self._seen += 1
        return is_sample or self._pays

    def compressed(self, parts: Sequence[Buffer], length: int) -> EncodedEntry:
        """The entry compressed, or as it is if that does not pay. Callable from any thread, one call at a time."""
        payload = compress_payload(parts, length)
        self._pays = len(payload) < PAYS_BELOW * length
        if not self._pays:
            return plain(parts, length)
        return EncodedEntry((payload,), len(payload), crc32c(payload), Codec.ZSTD, is_copy=True)


def plain(parts: Sequence[Buffer], length: int) -> EncodedEntry:
    """The entry without compression. Small parts are joined once, for the journal and all links together."""
    held = tuple(parts)
    is_copy = length < JOINED_PART_BYTES_MAX * len(held)
    if is_copy:
        held = (b"".join(held),)
    checksum = 0
    for part in held:
        checksum = crc32c(part, checksum)
    return EncodedEntry(held, length, checksum, Codec.PLAIN, is_copy)

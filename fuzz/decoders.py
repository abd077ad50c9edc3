"""What takes bytes from outside or from a disk, as functions that any bytes may be given to.

Each returns when the bytes were refused as they should be, or were good; what was good must come back the same when it
is encoded anew. Any other exception is a defect. The journal's and a block's checksums are set right first, where there
are any: damage that they find is not what is looked for.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from crc32c import crc32c

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.adapters.tcp.replica_protocol import (
    HANDSHAKE_MESSAGE_BYTES_MAX,
    LinkIdentity,
    MessageAssembler,
    OwnerHandshake,
    ReplicaHandshake,
)
from headrace.codec import (
    container_snapshots,
    data_frames,
    events,
    replica_messages,
    stream_cut_text,
    table_entries,
    time_blocks,
)
from headrace.codec.delegation_tokens import (
    TokenClaims,
    TokenKey,
    TokenKeys,
    encode_token,
    parse_token_keys,
    token_keys_text,
    verify_token,
)
from headrace.metadata.cluster_records import decode_claim, decode_snapshot_pointer
from headrace.metadata.history_records import decode_history, decode_sealed_segments
from headrace.metadata.intent import decode_intent
from headrace.metadata.key_value_table import decode_table, decode_table_tombstone
from headrace.metadata.reader_group import decode_group
from headrace.metadata.request_messages import parse_request_message
from headrace.metadata.scope import decode_guard, decode_listed_tags
from headrace.metadata.stream import decode_epoch, decode_stream, decode_tombstone
from headrace.metadata.truncation import decode_truncation
from headrace.model import chunks
from headrace.model.container_logs import ReplicaId
from headrace.model.errors import CorruptError, HeadraceError, IllegalStateError, InvalidRequestError, UnauthorizedError
from headrace.segmentstore.containers.operation_log import FrameReader
from headrace.segmentstore.log.journal import journal_format
from headrace.segmentstore.log.journal.journal_format import Format2
from headrace.segmentstore.log.journal.journal_scan import RecordScan
from headrace.wire.fields import LAYOUTS

_TYPES: Final = sorted(kind.TYPE for kind in LAYOUTS)
_SALT: Final = 0x0102030405060708
LINK_IDENTITY: Final = LinkIdentity(b"c" * 16, ReplicaId(b"p" * 16), 6, b"s" * 32)
_TOKEN_KEY: Final = TokenKey("fuzz", b"k" * 32)
_WITH_PAYLOADS: Final = (replica_messages.Entry.TYPE, replica_messages.Entries.TYPE)
_RECORDS: Final[list[Callable[[Mapping[str, Any]], object]]] = [
    decode_epoch,
    decode_history,
    decode_intent,
    decode_table_tombstone,
    decode_table,
    decode_group,
    decode_listed_tags,
    decode_guard,
    decode_sealed_segments,
    decode_stream,
    decode_tombstone,
    decode_truncation,
    parse_request_message,
    lambda body: chunks.chunk_run(chunks.chunk_sort(7), body),
    decode_claim,
    decode_snapshot_pointer,
    lambda body: chunks.run_link(chunks.chunk_sort(7), body),
]


def wire_command(data: bytes) -> None:
    """The first byte chooses the type, the rest is the payload."""
    if not data:
        return
    with contextlib.suppress(wire.WireFormatError):
        command = wire.decode(_TYPES[data[0] % len(_TYPES)], memoryview(data)[1:])
        frame = wire.encode(command)
        type_code, length = wire.decode_header(frame)
        if wire.decode(type_code, memoryview(frame)[8:]) != command or length != len(frame) - 8:
            raise AssertionError(f"{command} does not come back")


def wire_frames(data: bytes) -> None:
    """A stream of frames, received in pieces as long as the first byte says."""
    receiver = wire.FrameReceiver()
    piece_bytes, position = 1 + (data[0] if data else 0), 1
    with contextlib.suppress(wire.WireFormatError):
        while position < len(data):
            space = receiver.writable()
            count = min(len(space), piece_bytes, len(data) - position)
            space[:count] = data[position : position + count]
            position += count
            for type_code, payload in receiver.received(count):
                wire.decode(type_code, payload)


def operation(data: bytes) -> None:
    """One operation of a container's log."""
    with contextlib.suppress(CorruptError):
        decoded = data_frames.decode_operation(memoryview(data))
        again = b"".join(data_frames.encode_operation(decoded))
        if data_frames.decode_operation(memoryview(again)) != decoded:
            raise AssertionError(f"{decoded} does not come back")


def data_frame(data: bytes) -> None:
    """Entries of a container's log, each behind a byte that says its length in units of 8."""
    reader, position, entry = FrameReader(0), 0, 0
    with contextlib.suppress(CorruptError):
        while position < len(data):
            length = data[position] * 8
            payload = memoryview(data)[position + 1 : position + 1 + length]
            for logged in reader.read(entry, payload):
                data_frames.decode_operation(memoryview(logged.content))
            position, entry = position + 1 + length, entry + 1


def journal_records(data: bytes) -> None:
    """What lies behind the header of a journal file; the first byte says whether the file has a successor."""
    layout = Format2(_SALT)
    content = bytes(journal_format.FILE_HEADER_BYTES) + _with_checksums(data[1:])
    disk = MemoryJournalDisk()
    disk.create("fuzz", len(content))
    file = disk.open("fuzz")
    file.write(0, [content])
    end = len(content) if data[:1] > b"\x7f" else None
    for tolerates_damage in (False, True):
        scan = RecordScan(file, layout, end, "fuzz", tolerates_damage=tolerates_damage)
        with contextlib.suppress(CorruptError):
            length = sum(layout.header_bytes + record.header.length for record in scan)
            if scan.end != journal_format.FILE_HEADER_BYTES + length or scan.end > len(content):
                raise AssertionError(f"records of {length} bytes end at {scan.end} of {len(content)}")


def journal_header(data: bytes) -> None:
    """The first block of a journal file, also of the versions that are not known any more."""
    for header_bytes in (36, 52):
        fields = data[:header_bytes]
        block = fields + crc32c(fields).to_bytes(4, "big")
        with contextlib.suppress(CorruptError):
            journal_format.decode_file_header(block.ljust(journal_format.FILE_HEADER_BYTES, b"\0"), "fuzz")


def container_snapshot(data: bytes) -> None:
    """A container's metadata."""
    with contextlib.suppress(CorruptError):
        snapshot = container_snapshots.decode_snapshot([data])
        again = list(container_snapshots.encode_snapshot(snapshot))
        if list(container_snapshots.encode_snapshot(container_snapshots.decode_snapshot(again))) != again:
            raise AssertionError(f"{snapshot} does not come back")


def record(data: bytes) -> None:
    """The first byte chooses the kind of a metadata record or message; the rest is its body as JSON."""
    try:
        body = json.loads(data[1:])
    except (ValueError, RecursionError):
        return
    if isinstance(body, dict):
        with contextlib.suppress(CorruptError, InvalidRequestError):
            _RECORDS[data[0] % len(_RECORDS)](body)


def stream_cut(data: bytes) -> None:
    """The text of a stream cut, as a user may hand it in."""
    with contextlib.suppress(HeadraceError):
        cut = stream_cut_text.parse_stream_cut_text(data.decode("latin-1"))
        if stream_cut_text.parse_stream_cut_text(stream_cut_text.stream_cut_text(cut)) != cut:
            raise AssertionError(f"{cut} does not come back")


def event_frames(data: bytes) -> None:
    """Events as a client reads them."""
    with contextlib.suppress(HeadraceError):
        events.iter_events(data)


def time_block(data: bytes) -> None:
    """The time points of a run."""
    block = data + crc32c(data).to_bytes(4, "big")
    with contextlib.suppress(CorruptError):
        points = time_blocks.decode_time_block(block, 1000, 1 << 20, 5)
        again = time_blocks.encode_time_block(points, 1000)
        if list(time_blocks.decode_time_block(again, 1000, 1 << 20, points.oldest)) != list(points):
            raise AssertionError("time points do not come back")


def table_entry(data: bytes) -> None:
    """Entries of a table's segment."""
    with contextlib.suppress(CorruptError):
        found, taken = table_entries.decode_entries(memoryview(data), 1 << 20)
        if taken != sum(table_entries.entry_bytes(key, place) for key, place in found):
            raise AssertionError(f"{taken} bytes for {found}")


def _with_checksums(data: bytes) -> bytes:
    """Records as `data` has them, with the mark and the checksums that they should have."""
    header_bytes = Format2.header_bytes
    raw, position = bytearray(data), 0
    while position + header_bytes <= len(raw):
        raw[position : position + 12] = Format2(_SALT).mark
        end = position + header_bytes + int.from_bytes(raw[position + 72 : position + 76], "big")
        whole = end <= len(raw)
        if whole:
            raw[position + 76 : position + 80] = crc32c(raw[position + header_bytes : end]).to_bytes(4, "big")
        checksum = crc32c(raw[position + 16 : position + header_bytes], crc32c(raw[position : position + 12]))
        raw[position + 12 : position + 16] = checksum.to_bytes(4, "big")
        if not whole:
            break
        position = end
    return bytes(raw)


def delegation_token(data: bytes) -> None:
    """A token; if the first byte is large, its body, which is then signed."""
    text = data[1:].decode("utf-8", "replace")
    if data[:1] > b"\x7f":
        header, _, _ = encode_token(TokenClaims("", 0, 0, {}), _TOKEN_KEY).split(".")
        signed = f"{header}.{_base64url(data[1:])}"
        signature = hmac.new(_TOKEN_KEY.secret, signed.encode(), hashlib.sha256).digest()
        text = f"{signed}.{_base64url(signature)}"
    with contextlib.suppress(UnauthorizedError):
        claims = verify_token(text, TokenKeys((_TOKEN_KEY,)), 0.0)
        claims.has_expired(0.0)
        with contextlib.suppress(IllegalStateError):  # it may have become too long
            again = encode_token(claims, _TOKEN_KEY)
            if verify_token(again, TokenKeys((_TOKEN_KEY,)), 0.0) != claims:
                raise AssertionError(f"{claims} do not come back")


def token_keys(data: bytes) -> None:
    """The keys of delegation tokens, as a file or a secret has them."""
    with contextlib.suppress(CorruptError):
        keys = parse_token_keys(data.decode("utf-8", "replace"))
        if parse_token_keys(token_keys_text(keys)) != keys:
            raise AssertionError("keys do not come back")


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def replica_message(data: bytes) -> None:
    """A message between stores that hold copies of a log."""
    with contextlib.suppress(CorruptError):
        message = replica_messages.decode_message(memoryview(data))
        if replica_messages.encode_message(message) != data:
            raise AssertionError(f"{message} does not come back")


def replica_link(data: bytes) -> None:
    """What an owner sends to a replica, in pieces as long as the first byte says.

    The second byte chooses between a stranger and an owner that has proved itself before.
    """
    piece_bytes, is_proved, stream = 1 + 7 * (data[0] if data else 0), data[1:2] > b"\x7f", data[2:]
    handshake = ReplicaHandshake(LINK_IDENTITY, 1 << 20, lambda count: bytes(count))
    assembler = MessageAssembler(512, HANDSHAKE_MESSAGE_BYTES_MAX)
    if is_proved:
        assembler.accept_large()
    messages: list[memoryview] = []
    with contextlib.suppress(HeadraceError):
        while stream:
            space = assembler.writable()
            count = min(len(space), piece_bytes, len(stream))
            space[:count] = stream[:count]
            stream = stream[count:]
            assembler.received(count)
            while (raw := assembler.next_message()) is not None:
                messages.append(raw if raw[0] in _WITH_PAYLOADS else memoryview(bytes(raw)))
                if is_proved:
                    replica_messages.decode_message(raw)
                elif len(messages) == 1:
                    handshake.answer(bytes(raw))
                else:
                    handshake.check(bytes(raw))
                    is_proved = True
                    assembler.accept_large()
    if not data[2:].startswith(b"".join(messages)):
        raise AssertionError(f"{len(messages)} messages are not what was sent")


def replica_answer(data: bytes) -> None:
    """What a stranger answers to an owner's HELLO."""
    with contextlib.suppress(HeadraceError):
        OwnerHandshake(LINK_IDENTITY, LINK_IDENTITY.replica, lambda count: bytes(count)).proof(data)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "wire-command": wire_command,
    "wire-frames": wire_frames,
    "operation": operation,
    "data-frame": data_frame,
    "journal-records": journal_records,
    "journal-header": journal_header,
    "container-snapshot": container_snapshot,
    "record": record,
    "stream-cut": stream_cut,
    "event-frames": event_frames,
    "time-block": time_block,
    "table-entry": table_entry,
    "delegation-token": delegation_token,
    "token-keys": token_keys,
    "replica-message": replica_message,
    "replica-link": replica_link,
    "replica-answer": replica_answer,
}

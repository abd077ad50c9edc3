"""Journal files of format 1, which are only read now: one journal that release 0.1.0 wrote, and parts of others."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from headrace.adapters.memory.journal_disk import MemoryJournalDisk

FILE_BYTES: Final = 8 << 10
SALT: Final = 0x0102030405060708


def encode_file_header(version: int, sequence: int, salt: int, previous_end: int) -> bytes:
    fields = struct.pack(">8sIQQQ", b"HRJOURNL", version, sequence, salt, previous_end)
    return (fields + struct.pack(">I", crc32c(fields))).ljust(4096, b"\0")


def encode_record(
    salt: int,
    container: int,
    epoch: int,
    entry: int,
    truncated_before: int,
    commit_start: int,
    payload: bytes,
    *,
    copied: bool = False,
) -> bytes:
    """A record of 56 bytes and its payload."""
    mark = struct.pack(">4sQ", b"HRJR", salt)
    number = container | copied << 31
    fields = struct.pack(">IIQQQQ", number, len(payload), epoch, entry, truncated_before, commit_start)
    return mark + struct.pack(">I", crc32c(payload, crc32c(fields, crc32c(mark)))) + fields + payload


def disk_of(files: dict[str, bytes]) -> MemoryJournalDisk:
    """A disk with these files, which is durable as it is."""
    disk = MemoryJournalDisk()
    for name, content in files.items():
        disk.create(name, len(content))
        file = disk.open(name)
        file.write(0, [content])
        file.sync()
    return disk


def one_file(records: Sequence[bytes], version: int = 2, size_bytes: int = FILE_BYTES) -> MemoryJournalDisk:
    """A disk with one file of format 1, in which these records follow the header."""
    content = encode_file_header(version, 1, SALT, 0) + b"".join(records)
    return disk_of({"journal-0000000000000001": content.ljust(size_bytes, b"\0")})


def disk_of_0_1_0() -> MemoryJournalDisk:
    """Two files of 8 KiB, of a journal that release 0.1.0 wrote.

    Container 0 has three entries, of the epochs 3, 3 and 5; the first two are copied records. Container 1 has the
    entries 16 of epoch 3 and 17 and 18 of epoch 5, and is truncated before 16. The log of container 2 was forgotten.
    """
    return disk_of({name: zlib.decompress(base64.b85decode("".join(text))) for name, text in _WRITTEN_BY_0_1_0.items()})


_WRITTEN_BY_0_1_0: Final = {
    "journal-0000000000000003": (
        "c-r#_^70Q2^7CO}U|?c^0A>O8BNq?1?LGqG%1T-",
        "1J>SeQ3P!;w7zLwX6pVsVFbYP&C>RB!U=)mkAqzZ$yn<l;{a3<^R|AC@85o$~!NvlhG!K;KhEM_wNu|Y=3TC6>Hws3<$SNh?hwXj",
        "efLbarW7j33mYI^1s-uvcUyzxaf^0@`5Z@%I860S4Fk&-9p(H;aMgIdg8#J{r{k*8O$SP!g-",
        "vx5Yag=a;==#7VocU<nkAhJ!vP!t7FSi%sC|&qbX-N)beN+88(xLh|(ew$R>&s3pC{f5yQ!pM4`cW_nM!_f;1p@#8WLZ@8",
    ),
    "journal-0000000000000004": (
        "c-r#_^70Q2^7CO}U|?c^02Vp@*PV_&CN>bRWaHlz{}(fif>AIEM!_f;1*2dTjDk@x3P!;w7zLwX$O4ZbuOL`|-",
        "zMnXQ>ZW(lxBs}OsKj981mB;QVa5vGZajbO}MdUe<4ts5r{d_Ob~?9{7@5|vQrC66oAH{7@)p`>owE>4m1OV&<#k;OHnAv$SfX>#",
        "8EH`M!_f;1*2dTjDk@x3P!;w7zLw%0002WO(sM",
    ),
}

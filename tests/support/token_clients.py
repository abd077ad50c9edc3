"""Keys, tokens and commands for stores that need delegation tokens."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from store_world import WireClient, World

from headrace import wire
from headrace.codec.delegation_tokens import TokenClaims, TokenKey, TokenKeys, encode_token
from headrace.model.access import Access, stream_resource

SECRET = b"0123456789abcdef0123456789abcdef"
KEY = TokenKey("first", SECRET)
REVOKED = TokenKey("revoked", SECRET)
KEYS = TokenKeys((KEY,))

SEGMENT = "shop/orders/0.#epoch.0"
STREAM = stream_resource("shop", "orders")
TABLE = "shop/prices_kvtable/0.#epoch.0"
LIFE_S = 600

INVALID, EXPIRED = wire.TOKEN_CHECK_FAILED, wire.TOKEN_EXPIRED


def token_of(
    world: World, grants: dict[str, Access], *, key: TokenKey = KEY, life_s: int = LIFE_S, subject: str = "me"
) -> str:
    """A token that is issued now."""
    now_s = world.clock.now_ms() // 1_000
    return encode_token(TokenClaims(subject, now_s, now_s + life_s, grants), key)


def admin(world: World) -> str:
    return token_of(world, {"*": Access.ADMIN}, life_s=10_000_000)


def writing(world: World) -> str:
    return token_of(world, {STREAM: Access.READ_UPDATE})


def with_token(command: Any, token: str) -> Any:
    return replace(command, delegation_token=token)


def refused(request_id: int, code: int = INVALID) -> wire.AuthTokenCheckFailed:
    return wire.AuthTokenCheckFailed(request_id, "", code)


COMMANDS: list[Any] = [
    wire.ReadSegment(SEGMENT, -1, 9, "", 101),  # before the head, so that it does not wait for data
    wire.GetStreamSegmentInfo(102, SEGMENT),
    wire.GetSegmentAttribute(103, SEGMENT, 5),
    wire.LocateOffset(104, SEGMENT, 0),
    wire.GetTableSegmentInfo(105, TABLE),
    wire.ReadTable(106, TABLE, "", (wire.TableKey(b"k"),)),
    wire.ReadTableKeys(107, TABLE, "", 9),
    wire.ReadTableEntries(108, TABLE, "", 9),
    wire.ReadTableEntriesDelta(109, TABLE, "", 0, 9),
    wire.SetupAppend(110, 7, SEGMENT),
    wire.CreateTransientSegment(111, 7, SEGMENT),
    wire.TruncateSegment(112, SEGMENT, 1),
    wire.TruncateSegmentUpTo(113, SEGMENT, 1, 5, 9),
    wire.SealSegment(114, SEGMENT),
    wire.UpdateSegmentAttribute(115, SEGMENT, 5, 1, wire.NO_ATTRIBUTE_VALUE),
    wire.UpdateSegmentAttributeUpTo(116, SEGMENT, 5, 1, wire.NO_ATTRIBUTE_VALUE, 5, 9),
    wire.UpdateTableEntries(117, TABLE, "", (wire.TableEntry(b"k", wire.NO_VERSION, b"v"),)),
    wire.RemoveTableKeys(118, TABLE, "", (wire.TableKey(b"k"),)),
    wire.CreateSegment(119, "shop/orders/1.#epoch.0", 0, 0),
    wire.DeleteSegment(120, SEGMENT),
    wire.DeleteSegmentUpTo(121, SEGMENT, 5, 9),
    wire.UpdateSegmentPolicy(122, SEGMENT, 1, 1),
    wire.MergeSegments(123, SEGMENT, f"{SEGMENT}#transaction.{5:032x}"),
    wire.MergeSegmentsBatch(124, SEGMENT, (f"{SEGMENT}#transaction.{5:032x}",)),
    wire.CreateTableSegment(125, "shop/other_kvtable/0.#epoch.0"),
    wire.DeleteTableSegment(126, TABLE, False),
]
"""One of each type with a token, which is empty."""


def has_token(kind: type[Any]) -> bool:
    return "delegation_token" in kind.__struct_fields__


async def prepare(world: World, client: WireClient) -> None:
    """Make the segment and the table of COMMANDS, with what they need to succeed."""
    token = admin(world)
    for command in (
        wire.CreateSegment(1, SEGMENT, 0, 0, token),
        wire.CreateSegment(2, f"{SEGMENT}#transaction.{5:032x}", 0, 0, token),
        wire.CreateTableSegment(3, TABLE, token),
    ):
        assert isinstance(await client.call(command), wire.SegmentCreated)


async def set_up(client: WireClient, token: str, writer_id: int = 7, request_id: int = 8) -> int:
    """The last event number of the writer."""
    reply = await client.call(wire.SetupAppend(request_id, writer_id, SEGMENT, token))
    assert isinstance(reply, wire.AppendSetup), reply
    return reply.last_event_number

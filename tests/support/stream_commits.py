"""Transactions of a stream in memory: what was written in them, and what readers see of them."""

from __future__ import annotations

from stream_world import StreamWorld

from headrace.model.transactions import TransactionState


def all_bytes(world: StreamWorld, stream: str = "t") -> bytes:
    """What a reader sees of a stream of one key, from the head to the tail."""
    between = world.segments.between("s", stream, None, None)
    return b"".join(
        world.bare_segment_stores.read(segment_range.name, segment_range.start_offset, 1 << 20)
        for segment_range in between.ranges
        if segment_range.key_range.low == 0.0
    )


def transaction_with(world: StreamWorld, data: bytes, position: float = 0.0) -> int:
    identifier = world.begin()
    world.write_in(identifier, position, data)
    return identifier


def states(world: StreamWorld, *transactions: int) -> list[TransactionState]:
    return [world.transactions.get_transaction("s", "t", transaction).state for transaction in transactions]

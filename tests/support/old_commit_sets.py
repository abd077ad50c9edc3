"""Commit sets as release 0.1.0 marked them: under a key, all members in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stream_world import StreamWorld

from headrace.metadata.commit_set import commit_set_key
from headrace.metadata.transaction_due import DueEntry, create_due
from headrace.metadata.transaction_messages import COMMIT, TransactionMessage
from headrace.metadata.transaction_records import TransactionRecords, mark_for_commit
from headrace.model.transactions import COMMIT_SET_KEPT_MS, CommitOrder, marked_for_commit, transaction_text
from headrace.ports.metadata_store import Create, Write


def mark_old_set(world: StreamWorld, key: str, members: Sequence[int]) -> None:
    """The marks of transactions of s/t, with the record of the set and the entry that lets it be forgotten."""
    records, now_ms = TransactionRecords(world.store), world.clock.now_ms()
    found, _ = records.find_to_mark("s", "t", members)
    number = records.next_number("s", "t")
    body: dict[str, Any] = {
        "format": 1,
        "key": key,
        "transactions": list(map(transaction_text, members)),
        "marked": now_ms,
    }
    opened = [one for one in found if one is not None]
    assert len(opened) == len(members)
    incarnation = opened[0].transaction.first_segment_number
    writes: list[Write] = [
        Create(commit_set_key("s", "t", key), body),
        create_due(DueEntry(now_ms + COMMIT_SET_KEPT_MS, "s", "t", commit_set=key, first_segment_number=incarnation)),
    ]
    for index, stored in enumerate(opened):
        after = marked_for_commit(stored.transaction, CommitOrder(number, members[0], index))
        writes += mark_for_commit("s", "t", stored, after, now_ms)
    world.store.write(*writes)
    world.transaction_queues.send(TransactionMessage(COMMIT, "s", "t", members[0]))


def old_sets(world: StreamWorld) -> list[str]:
    """The keys of the sets that have a record."""
    return [str(body["key"]) for (_, sort), (_, body) in world.everything().items() if sort.startswith("commit-set/")]

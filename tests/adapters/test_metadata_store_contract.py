"""What `ports.metadata_store` promises, on every implementation."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.model.errors import InvalidRequestError
from headrace.ports.metadata_store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    ItemRefusedError,
    Key,
    MetadataStore,
    Record,
    Replace,
    WriteConflictError,
)

BODIES: list[dict[str, Any]] = [
    {},
    {"low": 0.1, "high": 1 / 3, "tiny": 5e-324, "negative": -0.0},
    {"offset": 2**63 - 1, "beyond": 2**200},
    {"name": "Straße \U0001f600 \u0000 \ud800", "empty": "", "none": None, "flag": True},
    {"nested": [{"a": [1, [2, []]]}, {}], "": "an empty name"},
]


@pytest.fixture
def store(metadata_store: MetadataStore) -> MetadataStore:
    return metadata_store


@pytest.mark.parametrize("body", BODIES, ids=lambda body: ",".join(body) or "nothing")
def test_a_body_comes_back_exactly(store: MetadataStore, partition: str, body: dict[str, Any]):
    key = Key(partition, "a")
    store.write(Create(key, body))
    assert store.get(key) == Record(key, 0, body)
    assert repr(store.get(key)) == repr(Record(key, 0, body))


def test_recreated_record_has_the_versions_of_its_creator(store: MetadataStore, partition: str):
    key, other = Key(partition, "a"), Key(partition, "b")
    store.write(Create(key, {"n": 0}))
    store.write(Delete(key, 0))
    store.write(Create(key, {"n": 1}, 7 << 32), Create(other, {"n": 1}, 1 << 62))
    for late in (Replace(key, {"n": 2}, 0), Delete(key, 0), Replace(other, {"n": 2}, 0)):
        with pytest.raises(WriteConflictError):
            store.write(late)
    store.write(Replace(key, {"n": 3}, 7 << 32))
    assert store.get(key) == Record(key, (7 << 32) + 1, {"n": 3})
    assert store.get(other) == Record(other, 1 << 62, {"n": 1})


def test_a_stored_body_does_not_follow_the_callers_object(store: MetadataStore, partition: str):
    body = {"tags": ["a"]}
    store.write(Create(Key(partition, "a"), body))
    body["tags"].append("b")
    assert store.get(Key(partition, "a")) == Record(Key(partition, "a"), 0, {"tags": ["a"]})


def test_what_is_not_there_is_none(store: MetadataStore, partition: str):
    assert store.get(Key(partition, "a")) is None


def test_create_fails_with_the_record_that_is_there(store: MetadataStore, partition: str):
    key = Key(partition, "a")
    store.write(Create(key, {"n": 1}))
    with pytest.raises(WriteConflictError) as conflict:
        store.write(Create(key, {"n": 2}))
    assert conflict.value.failed == {0: Record(key, 0, {"n": 1})}
    assert store.get(key) == Record(key, 0, {"n": 1})


def test_replace_counts_versions_and_refuses_stale_ones(store: MetadataStore, partition: str):
    key = Key(partition, "a")
    store.write(Create(key, {"n": 0}))
    store.write(Replace(key, {"n": 1}, 0))
    store.write(Replace(key, {"n": 2}, 1))
    for version in (0, 1, 3):
        with pytest.raises(WriteConflictError) as conflict:
            store.write(Replace(key, {"n": 9}, version))
        assert conflict.value.failed == {0: Record(key, 2, {"n": 2})}
    with pytest.raises(WriteConflictError) as conflict:
        store.write(Replace(Key(partition, "b"), {}, 0))
    assert conflict.value.failed == {0: None}
    assert store.get(Key(partition, "b")) is None


def test_delete_asks_for_a_version_or_for_nothing(store: MetadataStore, partition: str):
    key = Key(partition, "a")
    store.write(Create(key, {}))
    with pytest.raises(WriteConflictError) as conflict:
        store.write(Delete(key, 1))
    assert conflict.value.failed == {0: Record(key, 0, {})}
    store.write(Delete(key, 0))
    assert store.get(key) is None
    with pytest.raises(WriteConflictError) as conflict:
        store.write(Delete(key, 0))
    assert conflict.value.failed == {0: None}
    store.write(Delete(key, None))
    store.write(Create(key, {"n": 1}))
    store.write(Delete(key, None))
    assert store.get(key) is None


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a transaction"])
def test_check_holds_or_fails(store: MetadataStore, partition: str, alone: bool):
    here, absent = Key(partition, "here"), Key(partition, "absent")
    store.write(Create(here, {}))
    store.write(Replace(here, {"n": 1}, 0))
    record = Record(here, 1, {"n": 1})
    others = () if alone else (Create(Key(partition, "other"), {}),)
    failing = [(Check(here, None), record), (Check(here, 0), record), (Check(absent, 0), None)]
    for check, found in [*failing, (Check(absent, ANY_VERSION), None)]:
        with pytest.raises(WriteConflictError) as conflict:
            store.write(check, *others)
        assert conflict.value.failed == {0: found}
        assert store.get(Key(partition, "other")) is None
    for check in (Check(here, 1), Check(here, ANY_VERSION), Check(absent, None)):
        store.write(check, *others)
        if not alone:
            store.write(Delete(Key(partition, "other"), 0))
    assert store.get(here) == record


def test_a_transaction_is_all_or_nothing(store: MetadataStore, partition: str):
    a, b, c, d = (Key(partition, sort) for sort in "abcd")
    store.write(Create(a, {"n": 0}), Create(b, {"n": 0}), Check(c, None))
    with pytest.raises(WriteConflictError) as conflict:
        store.write(Replace(a, {"n": 1}, 0), Replace(b, {"n": 1}, 7), Create(c, {}), Delete(d, 0))
    assert conflict.value.failed == {1: Record(b, 0, {"n": 0}), 3: None}
    assert [store.get(key) for key in (a, b, c)] == [Record(a, 0, {"n": 0}), Record(b, 0, {"n": 0}), None]
    store.write(Replace(a, {"n": 1}, 0), Delete(b, 0), Create(c, {}), Delete(d, None))
    assert store.get_many([a, b, c, d]) == [Record(a, 1, {"n": 1}), None, Record(c, 0, {}), None]


def test_a_transaction_takes_a_hundred_writes_and_no_more(store: MetadataStore, partition: str):
    keys = [Key(partition, f"{n:03d}") for n in range(101)]
    store.write(*[Create(key, {}) for key in keys[:100]])
    assert all(store.get_many(keys[:100]))
    for writes in ([], [Delete(key, None) for key in keys], [Check(keys[0], 0), Delete(keys[0], 0)]):
        with pytest.raises(InvalidRequestError):
            store.write(*writes)
    assert all(store.get_many(keys[:100]))


def test_a_body_has_a_size_limit(store: MetadataStore, partition: str):
    key = Key(partition, "a")
    store.write(Create(key, {"x": "." * 390_000}))
    with pytest.raises(ItemRefusedError, match="larger than"):
        store.write(Replace(key, {"x": "." * 400_000}, 0))
    with pytest.raises(ItemRefusedError, match="larger than"):
        store.write(Delete(key, 0), Create(Key(partition, "b"), {"x": "." * 400_000}))
    record = store.get(key)
    assert record is not None
    assert record.version == 0


@pytest.mark.parametrize(
    "key",
    [Key("", "a"), Key("a", ""), Key("a" * 2049, "a"), Key("a", "é" * 513), Key("\ud800", "a"), Key("a", "\ud800")],
    ids=["no partition", "no sort", "long partition", "long sort", "partition not text", "sort not text"],
)
def test_key_that_dynamodb_does_not_accept_is_refused(store: MetadataStore, partition: str, key: Key):
    other = Create(Key(partition, "other"), {})
    writes = (Create(key, {}), Replace(key, {}, 0), Delete(key, None), Check(key, None))
    for call in (lambda: store.get(key), lambda: store.get_many([key, other.key])):
        with pytest.raises(ItemRefusedError):
            call()
    for write in writes:
        for group in ([write], [other, write]):
            with pytest.raises(ItemRefusedError):
                store.write(*group)
    assert store.get(other.key) is None


def test_longest_keys_are_accepted(store: MetadataStore, partition: str):
    key = Key(partition.ljust(2048, "p"), "é" * 512)
    store.write(Create(key, {}))
    assert store.get(key) == Record(key, 0, {})
    assert store.query(key.partition, first=key.sort, last=key.sort, limit=1).records == [Record(key, 0, {})]


@pytest.mark.parametrize(
    ("partition", "first", "last"), [("", "", None), ("p" * 2049, "", None), ("p", "s" * 1025, None)]
)
def test_range_that_dynamodb_does_not_accept_is_refused(
    store: MetadataStore, partition: str, first: str, last: str | None
):
    with pytest.raises(ItemRefusedError):
        store.query(partition, first=first, last=last, limit=1)


def test_transaction_has_a_size_limit(store: MetadataStore, partition: str):
    writes = [Create(Key(partition, f"{n:02d}"), {"x": "." * 390_000}) for n in range(11)]
    with pytest.raises(ItemRefusedError, match="transaction"):
        store.write(*writes)
    assert store.query(partition, limit=1).records == []


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_body_holds_only_what_json_has(store: MetadataStore, partition: str, number: float):
    with pytest.raises(ValueError, match="JSON"):
        store.write(Create(Key(partition, "a"), {"x": number}))
    assert store.get(Key(partition, "a")) is None


def test_get_many_answers_in_the_order_asked(store: MetadataStore, partition: str):
    keys = [Key(partition, f"{n:03d}") for n in range(100)]
    store.write(*[Create(key, {"n": n}) for n, key in enumerate(keys) if n % 3])
    wanted = keys[::-1]
    records = store.get_many(wanted)
    assert records == [Record(key, 0, {"n": int(key.sort)}) if int(key.sort) % 3 else None for key in wanted]
    assert store.get_many([]) == []
    for refused in ([*keys, Key(partition, "100")], [keys[0], keys[0]]):
        with pytest.raises(InvalidRequestError):
            store.get_many(refused)


def test_query_walks_ranges_in_the_order_of_utf8_bytes(store: MetadataStore, partition: str):
    sorts = sorted(["!", "0", "a", "a/", "a/1", "a/10", "a/2", "b", "é", "\uffff", "\U0001f600"], key=str.encode)
    other = Key(partition + "/other", "a")
    store.write(Create(other, {}), *[Create(Key(partition, sort), {"sort": sort}) for sort in sorts])

    def found(**bounds: Any) -> list[str]:
        page = store.query(partition, limit=100, **bounds)
        assert page.next_after is None
        assert all(record.body == {"sort": record.key.sort} for record in page.records)
        return [record.key.sort for record in page.records]

    assert found() == sorts
    assert found(descending=True) == sorts[::-1]
    assert found(first="a/", last="a/2") == ["a/", "a/1", "a/10", "a/2"]
    assert found(first="a/0", last="a0", descending=True) == ["a/2", "a/10", "a/1"]
    assert found(first="b") == sorts[sorts.index("b") :]
    assert found(last="a") == sorts[: sorts.index("a") + 1]
    assert found(first="b", last="a") == []
    assert found(last="") == []
    assert found(first="a0", last="a9") == []
    assert store.query(partition + "/nothing", limit=1).records == []
    with pytest.raises(InvalidRequestError):
        store.query(partition, limit=0)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_pages_add_up(store: MetadataStore, partition: str, limit: int):
    sorts = [f"{n}" for n in range(7)]
    store.write(*[Create(Key(partition, sort), {}) for sort in sorts])
    found: list[str] = []
    first = ""
    for _ in range(len(sorts) + 1):
        page = store.query(partition, first=first, limit=limit)
        assert len(page.records) <= limit
        found += [record.key.sort for record in page.records]
        if page.next_after is None:
            break
        assert page.next_after == found[-1]
        first = page.next_after + "\0"
    assert found == sorts


def test_a_query_is_not_cut_short_by_the_size_of_its_records(store: MetadataStore, partition: str):
    for n in range(6):
        store.write(Create(Key(partition, f"{n}"), {"x": "." * 380_000}))
    page = store.query(partition, limit=6)
    assert [record.key.sort for record in page.records] == list("012345")
    assert [record.key.sort for record in store.query(partition, limit=5).records] == list("01234")


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("bytes_max", "records"), [(1, 1), (300_000, 1), (300_008, 1), (300_009, 2), (1 << 20, 4)])
def test_a_query_ends_with_the_record_that_reaches_its_bytes(
    store: MetadataStore, partition: str, bytes_max: int, records: int, descending: bool
):
    """Six bodies of 300,008 bytes: also where that is inside or behind one answer of DynamoDB."""
    for n in range(6):
        store.write(Create(Key(partition, f"{n}"), {"x": "." * 300_000}))
    expected = "543210" if descending else "012345"
    page = store.query(partition, limit=6, descending=descending, bytes_max=bytes_max)
    assert [record.key.sort for record in page.records] == list(expected[:records])
    assert page.next_after == expected[records - 1]


def test_query_whose_bytes_end_at_the_last_record_is_complete(store: MetadataStore, partition: str):
    for n in range(2):
        store.write(Create(Key(partition, f"{n}"), {"x": "." * 100}))
    page = store.query(partition, limit=6, bytes_max=109)
    assert (len(page.records), page.next_after) == (2, None)


def test_concurrent_replacements_lose_nothing(store: MetadataStore, partition: str):
    key = Key(partition, "counter")
    store.write(Create(key, {"n": 0}))

    def add(times: int) -> None:
        for _ in range(times):
            record = store.get(key)
            while record is not None:
                try:
                    store.write(Replace(key, {"n": record.body["n"] + 1}, record.version))
                    break
                except WriteConflictError as conflict:
                    record = conflict.failed[0]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, [8] * 4))
    assert store.get(key) == Record(key, 32, {"n": 32})


def test_concurrent_transactions_keep_their_sum(store: MetadataStore, partition: str):
    left, right = Key(partition, "left"), Key(partition, "right")
    store.write(Create(left, {"n": 100}), Create(right, {"n": 0}))

    def move(times: int) -> None:
        moved = 0
        while moved < times:
            a, b = store.get_many([left, right])
            assert a is not None
            assert b is not None
            try:
                store.write(
                    Replace(left, {"n": a.body["n"] - 1}, a.version), Replace(right, {"n": b.body["n"] + 1}, b.version)
                )
                moved += 1
            except WriteConflictError:
                continue

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(move, [5] * 4))
    assert store.get_many([left, right]) == [Record(left, 20, {"n": 80}), Record(right, 20, {"n": 20})]

"""Random histories of writes against each metadata store and against a dict that obviously does the right thing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from headrace.ports.metadata_store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Key,
    MetadataStore,
    Record,
    Replace,
    Write,
    WriteConflictError,
)

SORTS = ["a", "a/1", "b", "é", "\U0001f600"]
bodies = st.dictionaries(
    st.sampled_from("xyz"),
    st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3) | st.none(),
    max_size=2,
)
versions = st.integers(0, 3)


def _writes(sort: str) -> st.SearchStrategy[Callable[[str], Write]]:
    return st.one_of(
        bodies.map(lambda body: lambda partition: Create(Key(partition, sort), body)),
        st.builds(lambda body, v: lambda partition: Replace(Key(partition, sort), body, v), bodies, versions),
        st.none().map(lambda v: lambda partition: Delete(Key(partition, sort), v)),
        versions.map(lambda v: lambda partition: Delete(Key(partition, sort), v)),
        (st.none() | st.just(ANY_VERSION) | versions).map(lambda v: lambda partition: Check(Key(partition, sort), v)),
    )


transactions = st.lists(st.sampled_from(SORTS), min_size=1, max_size=4, unique=True).flatmap(
    lambda sorts: st.tuples(*[_writes(sort) for sort in sorts])
)


class Histories(RuleBasedStateMachine):
    """`stored` maps sort keys to (version, body); every write is judged by it first."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__()
        self.store = store
        self.partition = f"model/{uuid.uuid4().hex}"
        self.stored: dict[str, tuple[int, dict[str, Any]]] = {}

    @rule(makers=transactions)
    def write(self, makers: tuple[Callable[[str], Write], ...]) -> None:
        writes = [make(self.partition) for make in makers]
        failed = {index: self._record(write.key.sort) for index, write in enumerate(writes) if not self._holds(write)}
        if failed:
            with pytest.raises(WriteConflictError) as conflict:
                self.store.write(*writes)
            assert conflict.value.failed == failed
            return
        self.store.write(*writes)
        for write in writes:
            self._apply(write)

    @invariant()
    def holds_the_same(self) -> None:
        expected = [self._record(sort) for sort in sorted(self.stored)]
        assert list(self.store.query(self.partition, limit=10).records) == expected
        keys = [Key(self.partition, sort) for sort in SORTS]
        assert self.store.get_many(keys) == [self._record(sort) for sort in SORTS]

    def _record(self, sort: str) -> Record | None:
        return Record(Key(self.partition, sort), *self.stored[sort]) if sort in self.stored else None

    def _holds(self, write: Write) -> bool:
        version = self.stored[write.key.sort][0] if write.key.sort in self.stored else None
        match write:
            case Create():
                return version is None
            case Delete(version=None):
                return True
            case Check(version=wanted) if wanted == ANY_VERSION:
                return version is not None
            case _:
                return version == write.version

    def _apply(self, write: Write) -> None:
        match write:
            case Create():
                self.stored[write.key.sort] = (0, dict(write.body))
            case Replace():
                self.stored[write.key.sort] = (write.version + 1, dict(write.body))
            case Delete():
                self.stored.pop(write.key.sort, None)


@pytest.mark.hypothesis
def test_histories(metadata_store: MetadataStore):
    run_state_machine_as_test(
        lambda: Histories(metadata_store), settings=settings(max_examples=15, stateful_step_count=12)
    )

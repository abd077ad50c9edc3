"""Any command of the wire protocol, for hypothesis."""

from __future__ import annotations

from typing import Any, get_type_hints

from hypothesis import strategies as st

from headrace import wire
from headrace.wire import fields as vocabulary
from headrace.wire import segments, tables
from headrace.wire.fields import LAYOUTS

ANY_I64 = st.integers(-(2**63), 2**63 - 1)
ANY_UUID = st.integers(0, 2**128 - 1)
ANY_TEXT = st.text(max_size=40)


def any_command(
    text: st.SearchStrategy[str] = ANY_TEXT,
    i64: st.SearchStrategy[int] = ANY_I64,
    uuid: st.SearchStrategy[int] = ANY_UUID,
) -> st.SearchStrategy[Any]:
    """Commands of every type, their fields from these strategies."""
    small = st.binary(max_size=40)
    values: list[tuple[Any, st.SearchStrategy[Any]]] = [
        (vocabulary.I8, st.integers(-128, 127)),
        (vocabulary.I32, st.integers(-(2**31), 2**31 - 1)),
        (vocabulary.I64, i64),
        (vocabulary.Bool, st.booleans()),
        (vocabulary.Uuid, uuid),
        (vocabulary.Text, text),
        (vocabulary.SegmentName, text),
        (vocabulary.Data, st.binary(max_size=100)),
        (vocabulary.Token, st.binary(max_size=256)),
        (vocabulary.Rest, st.binary(max_size=100)),
        (vocabulary.Event, st.binary(max_size=100)),
        (segments.SourceNames, st.lists(text, max_size=4).map(tuple)),
        (
            segments.AttributeUpdates,
            st.lists(st.builds(wire.AttributeUpdate, uuid, st.integers(0, 4), i64, i64), max_size=4).map(tuple),
        ),
        (tables.Versions, st.lists(i64, max_size=4).map(tuple)),
        (tables.ReadKeys, st.lists(st.builds(wire.TableKey, small, i64), max_size=4).map(tuple)),
        (tables.TableKeys, st.lists(st.builds(wire.TableKey, small, i64), max_size=4).map(tuple)),
        (tables.TableEntries, st.lists(st.builds(wire.TableEntry, small, i64, small), max_size=4).map(tuple)),
        (segments.MergedSources, st.lists(st.builds(wire.MergedSource, text, i64), max_size=4).map(tuple)),
    ]

    def commands(kind: type[Any]) -> st.SearchStrategy[Any]:
        hints = get_type_hints(kind, include_extras=True)
        strategies = [next(s for alias, s in values if alias == hints[name]) for name in kind.__struct_fields__]
        return st.tuples(*strategies).map(lambda found: kind(*found))

    return st.sampled_from(sorted(LAYOUTS, key=lambda kind: kind.__name__)).flatmap(commands)

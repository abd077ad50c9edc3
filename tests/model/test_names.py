"""Names of scopes, streams and segments, against the facts of Pravega's naming."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import names
from headrace.model.errors import InvalidRequestError
from headrace.model.key_value_tables import segments_owner
from headrace.model.limits import STREAM_NAME_CHARACTERS_MAX
from headrace.model.names import check_known_name, check_stream_name
from headrace.model.segments import segment_id

NAME = st.text("abcXYZ019._-", min_size=1, max_size=20)
HALF = st.integers(0, 2**31 - 1)
UINT128 = st.integers(0, 2**128 - 1)
SEGMENT = "s/t/0.#epoch.0"
TRANSACTION = names.transaction_segment_name(SEGMENT, 5)
TRANSIENT = names.transient_segment_name(SEGMENT, 1, 2)


@pytest.mark.parametrize("name", ["a", "A-1.b", "...", ".a", "-", "x" * 250])
def test_names_that_users_may_give(name: str):
    assert names.check_scope_name(name) == name
    assert names.check_stream_name(name) == name


@pytest.mark.parametrize("name", ["", "_a", "a b", "a/b", "a\n", "ä", "a#b", ".", "..", "x" * 256])
def test_invalid_names_are_refused(name: str):
    for check in (names.check_scope_name, names.check_stream_name):
        with pytest.raises(InvalidRequestError) as refused:
            check(name)
        assert refused.value.specific_code == "invalid_name"


@pytest.mark.parametrize(
    ("check", "kind"),
    [
        (names.check_scope_name, "scope"),
        (names.check_stream_name, "stream"),
        (names.check_reader_group_name, "reader group"),
        (names.check_reader_name, "reader"),
        (names.check_table_name, "key-value table"),
        (lambda name: names.check_known_name("stream", name), "stream"),
        (lambda name: names.check_segment_name_part("scope", name), "scope"),
    ],
)
def test_a_refusal_names_what_has_no_such_name(check: Callable[[str], str], kind: str):
    assert check("a.b-c") == "a.b-c"
    for wrong in ("", "a/b", "a#b", "..", "a b"):
        with pytest.raises(InvalidRequestError, match=f"^{kind} ") as refused:
            check(wrong)
        assert (refused.value.specific_code, refused.value.details["kind"]) == ("invalid_name", kind)


def test_kinds_of_segments_are_told_by_their_names():
    inner = names.transient_segment_name(TRANSACTION, 1, 2)
    every = [SEGMENT, TRANSACTION, TRANSIENT, inner]
    assert [names.is_transient_segment_name(name) for name in every] == [False, False, True, True]
    assert [names.is_transaction_segment_name(name) for name in every] == [False, True, False, True]
    assert [names.is_transient_segment_of(name, SEGMENT) for name in every] == [False, False, True, False]
    assert [names.is_transient_segment_of(name, TRANSACTION) for name in every] == [False, False, False, True]
    assert not names.is_transient_segment_of(TRANSIENT + "#x", SEGMENT)
    assert names.container_hash_key("7.#epoch.3") == "7"


def test_scopes_may_be_a_little_longer_than_streams():
    assert names.check_scope_name("x" * 255)
    with pytest.raises(InvalidRequestError):
        names.check_stream_name("x" * 251)


def test_names_of_the_system_are_known_but_not_given():
    assert names.check_known_name("stream", "_MARKt") == "_MARKt"
    for name in ("__a", "_", "a b", "", "a/b", ".", "..", "x" * 256):
        with pytest.raises(InvalidRequestError):
            names.check_known_name("stream", name)


@pytest.mark.parametrize(
    ("number", "epoch", "name"),
    [(0, 0, "s/t/0.#epoch.0"), (17, 3, "s/t/17.#epoch.3"), (2**31 - 1, 2**31 - 1, "s/t/2147483647.#epoch.2147483647")],
)
def test_segment_names(number: int, epoch: int, name: str):
    assert names.segment_name("s", "t", segment_id(epoch, number)) == name
    assert names.parse_segment_name(name) == names.StreamSegmentName("s", "t", segment_id(epoch, number))


def test_the_old_form_means_the_first_epoch():
    assert names.parse_segment_name("s/t/5") == names.StreamSegmentName("s", "t", 5)


@given(scope=NAME, stream=NAME, epoch=HALF, number=HALF)
def test_segment_names_come_back(scope: str, stream: str, epoch: int, number: int):
    identifier = segment_id(epoch, number)
    parsed = names.parse_segment_name(names.segment_name(scope, stream, identifier))
    assert parsed == names.StreamSegmentName(scope, stream, identifier)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "s/t",
        "s/t/x",
        "s/t/-1.#epoch.0",
        "s/t/0.#epoch.",
        "s/t/0.#epoch.0#transaction." + "0" * 32,
        "s/t/0/0",
        "/t/0",
    ],
)
def test_invalid_segment_names_are_refused(name: str):
    with pytest.raises(InvalidRequestError):
        names.parse_segment_name(name)


def test_numbers_beyond_31_bits_are_refused():
    with pytest.raises(InvalidRequestError):
        names.parse_segment_name("s/t/2147483648.#epoch.0")


def test_transaction_and_transient_names():
    parent = "s/t/0.#epoch.0"
    transaction = names.transaction_segment_name(parent, 5 << 64 | 5)
    assert transaction == f"{parent}#transaction.00000000000000050000000000000005"
    transient = names.transient_segment_name(parent, 1, 2)
    assert transient == f"{parent}#transient.{1:032x}.{2:032x}"
    assert names.parent_segment_name(transaction) == parent
    assert names.parent_segment_name(transient) == parent
    assert names.parent_segment_name(parent) is None
    assert names.parent_segment_name(f"{parent}#transaction.5") is None


@given(epoch=HALF, transaction=UINT128, writer=UINT128, unique=UINT128)
def test_epochs_and_transactions_of_a_number_share_a_container(epoch: int, transaction: int, writer: int, unique: int):
    parent = names.segment_name("scope", "stream", segment_id(epoch, 1))
    expected = names.container_of_segment("scope/stream/1", 8)
    assert expected == 5
    for name in (
        parent,
        names.transaction_segment_name(parent, transaction),
        names.transient_segment_name(parent, writer, unique),
        names.transient_segment_name(names.transaction_segment_name(parent, transaction), writer, unique),
    ):
        assert names.container_of_segment(name, 8) == expected


def test_mark_streams():
    assert names.mark_stream_name("t") == "_MARKt"
    assert names.mark_segment_name("s", "t") == "s/_MARKt/0.#epoch.0"
    assert names.stream_of_mark_stream("_MARKt") == "t"
    assert names.stream_of_mark_stream("_MARK_MARKt") == "_MARKt"
    for name in ("t", "_MARK", "MARKt", "_mark"):
        assert names.stream_of_mark_stream(name) is None
    longest = names.mark_stream_name("t" * 250)
    assert names.check_known_name("stream", longest) == longest


def hash_key_step_by_step(name: str) -> str:
    parent = names.parent_segment_name(name)
    while parent is not None:
        name, parent = parent, names.parent_segment_name(parent)
    return name.rpartition(".#epoch.")[0] or name


@given(
    st.lists(
        st.sampled_from(
            [SEGMENT, ".#epoch.", "#transaction.", "#transient.", "a" * 31, "b" * 32, f"{5:032x}.{6:032x}", "#", "."]
        ),
        max_size=12,
    ).map("".join)
)
def test_the_hash_key_is_that_of_the_last_parent(name: str):
    assert names.container_hash_key(name) == hash_key_step_by_step(name)


class CountedName(str):
    """Counts the characters that searches look at."""

    looked_at = 0

    def rfind(self, part: str, start: int, end: int) -> int:  # type: ignore[override]
        found = str.rfind(self, part, start, end)
        self.looked_at += end - max(found, start)
        return found


@pytest.mark.parametrize("suffix", ["#transient." + "a" * 32, "#transaction." + "a" * 32, "#transient." + "a" * 31])
@pytest.mark.parametrize("start", ["", "s/t/0.#epoch.0"])
def test_the_hash_key_looks_at_each_character_a_few_times(start: str, suffix: str):
    name = CountedName(start + suffix * 1_000)
    names.container_hash_key(name)
    assert 0 < name.looked_at <= 4 * len(name)


@pytest.mark.parametrize("name", [SEGMENT, TRANSACTION, TRANSIENT, f"{TRANSACTION}#transient.{1:032x}.{2:032x}"])
def test_names_of_parts_of_segments_are_allowed(name: str):
    assert names.check_nesting(name) == name


@pytest.mark.parametrize("name", [f"{TRANSACTION}#transaction.{1:032x}", f"{TRANSIENT}#transient.{1:032x}.{2:032x}"])
def test_names_of_parts_of_such_parts_are_refused(name: str):
    with pytest.raises(InvalidRequestError, match="cannot exist"):
        names.check_nesting(name)


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("flight delays", "flight-delays"),
        ("flight_kvtable", "flight"),
        ("Größe in cm", "Gr-e-in-cm"),
        ("_x", "x"),
        ("s" * 300, "s" * STREAM_NAME_CHARACTERS_MAX),
    ],
    ids=["blank", "suffix", "letters", "leading", "long"],
)
def test_a_refusal_suggests_a_name(name: str, similar: str):
    with pytest.raises(InvalidRequestError, match=rf"at the end, for example {re.escape(similar)}$"):
        check_stream_name(name)
    assert check_stream_name(similar) == similar


def test_commands_suggest_a_name_too():
    with pytest.raises(InvalidRequestError, match=r"for example flight-delays$"):
        check_known_name("stream", "flight delays")


@pytest.mark.parametrize("name", ["flight_delays", "a__b_", "x_kvtable2", "kvtable"])
def test_underscores_inside_names_are_allowed(name: str):
    assert check_stream_name(name) == check_known_name("stream", name) == name


def test_streams_and_tables_share_no_segment():
    """Segments of the table `x` are those that a stream `x_kvtable` would have."""
    for check in (names.check_stream_name, names.check_table_name, names.check_reader_group_name):
        with pytest.raises(InvalidRequestError, match="without a '_' in front or _kvtable at the end"):
            check("x_kvtable")
    assert segments_owner("x") == "x_kvtable"


@pytest.mark.parametrize("name", ["", "..", "___", "/", "x_kvtable_kvtable"])
def test_a_refusal_without_a_similar_name(name: str):
    with pytest.raises(InvalidRequestError) as refused:
        check_stream_name(name)
    assert "for example" not in refused.value.message

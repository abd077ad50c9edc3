"""Options: Pravega's names, checked when a DataFrame is loaded, with messages that say what to do."""

from __future__ import annotations

import pytest

from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.model.stream_cuts import StreamCut
from headrace.spark.options import read_options

REQUIRED = {"controller": "http://127.0.0.1:10080/", "scope": "s", "stream": "t"}


def test_defaults() -> None:
    options = read_options(REQUIRED)
    assert options.controller == "http://127.0.0.1:10080"
    assert options.start_stream_cut is None
    assert options.approx_bytes_per_trigger is None
    assert options.read_history_from == "s3"
    assert not options.strict_key_order
    assert options.ddl() == "`event` binary, `scope` string, `stream` string, `segment_id` bigint, `offset` bigint"


def test_names_and_words_are_taken_in_any_case() -> None:
    options = read_options(REQUIRED | {"Start_Stream_Cut": "LATEST", "event_format": "Text", "columns": "Event"})
    assert options.start_stream_cut == "latest"
    assert options.ddl() == "`event` string"


def test_the_text_of_a_cut_is_checked_and_kept() -> None:
    text = stream_cut_text(StreamCut.of("s", "t", {0: 5}))
    assert read_options(REQUIRED | {"end_stream_cut": f" {text} "}).end_stream_cut == text


@pytest.mark.parametrize("text", ["newest", "H4sIAb==", stream_cut_text(StreamCut.of("s", "other", {0: 5}))])
def test_what_is_no_cut_of_this_stream_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="earliest, latest, unbounded") as raised:
        read_options(REQUIRED | {"start_stream_cut": text})
    assert raised.value.details == {"option": "start_stream_cut"}


def test_options_of_pravegas_connector_for_writing_are_accepted() -> None:
    assert read_options(REQUIRED | {"allow_create_scope": "false", "exactly_once": "true"}) == read_options(REQUIRED)


@pytest.mark.parametrize(
    "time", ["1795428000500", "2026-11-23T10:00:00.500Z", "2026-11-23T12:00:00.5+02:00", "2026-11-23 10:00:00.500+00"]
)
def test_times_are_milliseconds_or_dates_with_a_zone(time: str) -> None:
    assert read_options(REQUIRED | {"start_stream_cut": time}).start_stream_cut == "time:1795428000500"


@pytest.mark.parametrize("time", ["978307200000", "2001-01-01T00:00:00Z"])
def test_times_from_2001_on_are_taken(time: str) -> None:
    assert read_options(REQUIRED | {"start_stream_cut": time}).start_stream_cut == "time:978307200000"


def test_the_network_is_an_option_or_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_NETWORK", raising=False)
    assert read_options(REQUIRED).network is None
    assert read_options(REQUIRED | {"network": "External"}).network == "external"
    monkeypatch.setenv("HEADRACE_NETWORK", "external")
    assert read_options(REQUIRED).network == "external"
    assert read_options(REQUIRED | {"network": "vpc"}).network == "vpc"
    with pytest.raises(InvalidRequestError, match="none of vpc, external"):
        read_options(REQUIRED | {"network": "moon"})


@pytest.mark.parametrize("missing", sorted(REQUIRED))
def test_what_is_required_is_named(missing: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"option '{missing}': it is required") as raised:
        read_options({name: value for name, value in REQUIRED.items() if name != missing})
    assert raised.value.specific_code == "invalid_option"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"approx_bytes_per_triger": "5"}, "did you mean 'approx_bytes_per_trigger'"),
        ({"zzz": "5"}, "the options are"),
        ({"approx_bytes_per_trigger": "0"}, "whole number of at least 1"),
        ({"patience_s": "9" * 5_000}, "at most 20 digits"),
        ({"approx_bytes_per_trigger": "1e6"}, "whole number"),
        ({"max_partition_bytes": "-3"}, "whole number"),
        ({"strict_key_order": "yes"}, "none of true, false"),
        ({"columns": "event,events"}, "no column 'events'"),
        ({"columns": "event,event"}, "twice"),
        ({"columns": ""}, "no column ''"),
        ({"controller": "tcp://localhost:9090"}, "not the URL of a controller"),
        ({"metadata": "Streams"}, "can only be read as a batch"),
        ({"read_history_from": "disk"}, "none of s3, segment_store"),
        ({"auth": "basic"}, "none of aws-iam"),
        ({"end_stream_cut": "earliest"}, "Give one of latest, unbounded"),
        ({"start_stream_cut": "2026-11-23T10:00:00"}, "has no time zone: write for example 2026-11-23T10:00:00Z"),
        ({"start_stream_cut": "1795428000500000000"}, "in milliseconds, so it has not 19 digits"),
        (
            {"start_stream_cut": "1795428000"},
            "'1795428000' is a time before 2001, since times are in milliseconds. If it is in seconds, append three "
            "zeros: 1795428000000. To read from the first event on, write earliest",
        ),
        ({"end_stream_cut": "1795428000"}, "option 'end_stream_cut': '1795428000' is a time before 2001"),
        (
            {"start_stream_cut": "0"},
            "before 2001.* append three zeros. To read from the first event on, write earliest",
        ),
        ({"start_stream_cut": "20261123"}, "before 2001"),
        ({"start_stream_cut": "978307199999"}, "before 2001"),
        ({"start_stream_cut": "1970-01-01T00:00:00Z"}, "'1970-01-01T00:00:00Z' is a time before 2001. To read"),
        ({"end_stream_cut": "2000-12-31T23:59:59.999Z"}, "before 2001"),
        ({"on_truncation": "ignore"}, "none of fail, skip"),
        ({"parallelism": "0"}, "whole number"),
        (
            {"start_stream_cut": "0001-01-01T00:00:00+14:00"},
            "option 'start_stream_cut': .* not a time of the years 1 to 9999",
        ),
        (
            {"end_stream_cut": "9999-12-31T23:59:59-14:00"},
            "option 'end_stream_cut': .* not a time of the years 1 to 9999",
        ),
    ],
)
def test_wrong_options_say_what_to_do(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as raised:
        read_options(REQUIRED | wrong)
    assert raised.value.details["option"] in wrong


JSON = REQUIRED | {"event_format": "json", "event_schema": "id bigint, `a b` struct<Event: date>, Stream string"}


def test_the_fields_are_in_the_place_of_the_event() -> None:
    options = read_options(JSON | {"columns": "offset,event,scope"})
    assert options.ddl() == (
        "`offset` bigint, `id` bigint, `a b` struct<`Event`: date>, `Stream` string, `scope` string"
    )
    assert options.column_types()[2] == ("a b", "struct<Event:date>")
    kept = read_options(JSON | {"columns": "event,offset", "on_bad_record": "Column", "corrupt_column": "bad"})
    assert kept.column_types()[-3:] == [("bad", "binary"), ("bad_reason", "string"), ("offset", "bigint")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "'Stream' is a column of the connector, too: leave it out of the option 'columns'"),
        ({"event_schema": "id bigint, id int"}, "option 'event_schema': .* 'id' is given twice"),
        ({"event_schema": ""}, "option 'event_schema': it is required"),
        ({"on_bad_record": "dead_letter"}, "none of fail, column, skip"),
        ({"corrupt_column": "bad"}, "it needs on_bad_record=column"),
        ({"columns": "event", "on_bad_record": "column", "corrupt_column": "ID"}, "'ID' is a field of event_schema"),
        ({"columns": "event", "on_bad_record": "column", "corrupt_column": " "}, "cannot be empty"),
        (
            {"columns": "event", "on_bad_record": "column", "event_schema": "_corrupt_reason int"},
            "'_corrupt_reason' is a field of event_schema",
        ),
        ({"columns": "event,offset", "on_bad_record": "column", "corrupt_column": "offset"}, "'offset' is a column"),
        ({"event_format": "text"}, "option 'event_schema': it needs event_format=json"),
        ({"event_format": "binary", "on_bad_record": "skip"}, "option 'event_schema': it needs event_format=json"),
    ],
)
def test_wrong_options_of_json_say_what_to_do(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as raised:
        read_options(JSON | wrong)
    assert raised.value.specific_code == "invalid_option"


TEXT = REQUIRED | {"event_format": "text"}


def test_text_has_the_columns_of_bad_records() -> None:
    kept = read_options(TEXT | {"on_bad_record": "column", "columns": "offset,event"})
    assert kept.ddl() == "`offset` bigint, `event` string, `_corrupt` binary, `_corrupt_reason` string"
    assert "event" not in kept.own_columns(), "it may be null"
    for on_bad_record in ("fail", "skip"):
        assert read_options(TEXT | {"on_bad_record": on_bad_record}).ddl() == read_options(TEXT).ddl()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"on_bad_record": "column", "corrupt_column": "event"}, "option 'corrupt_column': 'event' is"),
        ({"on_bad_record": "column", "corrupt_column": "Offset"}, "'Offset' is a column of the connector"),
        ({"corrupt_column": "bad"}, "it needs on_bad_record=column"),
        ({"on_bad_record": "drop"}, "none of fail, column, skip"),
        (
            {"event_format": "binary", "on_bad_record": "skip"},
            "'on_bad_record': it needs event_format=json or text",
        ),
    ],
)
def test_wrong_options_of_text_say_what_to_do(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as raised:
        read_options(TEXT | wrong)
    assert raised.value.specific_code == "invalid_option"


@pytest.mark.parametrize("name", ["scope", "stream"])
def test_names_follow_the_rules_of_the_system(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        read_options(REQUIRED | {name: "no/slash"})


def test_times_without_a_date_are_times():
    for text in ("-5m", "10:05"):
        found = read_options(REQUIRED | {"start_stream_cut": text}).start_stream_cut
        assert found is not None
        assert found.startswith("time:")

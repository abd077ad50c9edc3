"""What a console that was started with `--allow-changes` changes, and what it asks before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import urlsplit

import httpx
import pytest

from headrace.client import GroupStream, Headrace, ReaderGroupConfiguration, ScalingPolicy
from headrace.console import change_pages
from headrace.console.server import ConsoleServer


@pytest.fixture
def editor(changing: ConsoleServer) -> Iterator[httpx.Client]:
    """A browser that came with the token, and sends forms as browsers do."""
    base = f"http://127.0.0.1:{changing.port}"
    with httpx.Client(base_url=base, follow_redirects=True, timeout=60) as opened:
        assert opened.get(f"/?{urlsplit(changing.address).query}").status_code == 200
        opened.headers["origin"] = base
        yield opened


def active(client: Headrace, stream: str) -> list[tuple[int, float, float]]:
    segments = client.admin.epoch_segments("shop", stream).segments
    return sorted((each.segment_id, each.low, each.high) for each in segments)


def test_a_segment_is_split_and_merged(editor: httpx.Client, client: Headrace):
    client.admin.create_stream("shop", "split", scaling=ScalingPolicy.fixed(1))
    assert 'action="/streams/shop/split/split"' in editor.get("/streams/shop/split").text
    answer = editor.post("/streams/shop/split/split", data={"segment": "0@0", "at": "0.25"})
    assert (answer.status_code, answer.url.path) == (200, "/streams/shop/split")
    first, second = active(client, "split")
    assert (first[1:], second[1:]) == ((0.0, 0.25), (0.25, 1.0))
    editor.post("/streams/shop/split/split", data={"segment": "1@1", "at": ""})
    assert [each[1:] for each in active(client, "split")] == [(0.25, 1.0), (0.0, 0.125), (0.125, 0.25)]
    answer = editor.post("/streams/shop/split/merge", data={"segments": "3@2, 4@2"})
    assert answer.url.path == "/streams/shop/split"
    assert [each[1:] for each in active(client, "split")] == [(0.25, 1.0), (0.0, 0.25)]


@pytest.mark.parametrize(
    ("action", "fields", "says"),
    [
        ("split", {}, "the field segment is empty"),
        ("split", {"segment": "7@7"}, "not an active one"),
        ("split", {"segment": "0@0", "at": "half"}, "not a position"),
        ("split", {"segment": "0@0", "at": "nan"}, "not inside the segment"),
        ("split", {"segment": "0@0", "at": "1.5"}, "not inside the segment"),
        ("merge", {"segments": "0@0"}, "two neighbouring segments"),
        ("merge", {"segments": "0@0 x"}, "is not a number"),
        ("merge", {"segments": "0@0 2@0"}, "only neighbours can be merged"),
    ],
)
def test_a_wrong_scale_is_refused(editor: httpx.Client, client: Headrace, action, fields, says):
    if "kept" not in [each.stream for each in client.admin.list_streams("shop")]:
        client.admin.create_stream("shop", "kept", scaling=ScalingPolicy.fixed(3))
    answer = editor.post(f"/streams/shop/kept/{action}", data=fields)
    assert 400 <= answer.status_code < 500
    assert says in unescape(answer.text)
    assert [each[0] for each in active(client, "kept")] == [0, 1, 2]


def reset_form(text: str) -> dict[str, list[str]]:
    return {"cut": [unescape(each) for each in re.findall(r'name="cut" value="([^"]+)"', text)]}


def test_a_reset_is_shown_before_it_is_done(editor: httpx.Client, client: Headrace):
    client.admin.create_stream("shop", "source", scaling=ScalingPolicy.fixed(1))
    configuration = ReaderGroupConfiguration((GroupStream("shop", "source"),))
    client.admin.reader_groups.create("shop", "again", configuration)
    with client.writer("shop", "source") as writer:
        writer.write(b"x" * 992, "key").result()
    client.reader_group("shop", "again").close()  # its state begins

    def behind() -> int:
        with client.reader_group("shop", "again", initialize=False) as group:
            return group.lag().bytes_unread

    skipping = editor.get("/groups/shop/again/reset?to=latest").text
    assert "skip 1.0 kB" in skipping
    assert "headrace group reset shop/again --to latest" in skipping
    assert behind() == 1_000  # nothing has changed yet
    assert editor.post("/groups/shop/again/reset", data=reset_form(skipping)).url.path == "/groups/shop/again"
    assert behind() == 0
    preview = editor.get("/groups/shop/again/reset").text
    assert "headrace group reset shop/again</code>" in preview
    editor.post("/groups/shop/again/reset", data=reset_form(editor.get("/groups/shop/again/reset?to=earliest").text))
    assert behind() == 1_000


def test_a_group_that_no_reader_joined_is_reset(editor: httpx.Client, client: Headrace):
    client.admin.create_stream("shop", "unread", scaling=ScalingPolicy.fixed(1))
    client.admin.reader_groups.create("shop", "early", ReaderGroupConfiguration((GroupStream("shop", "unread"),)))
    with client.writer("shop", "unread") as writer:
        writer.write(b"before", "key").result()
    preview = editor.get("/groups/shop/early/reset?to=latest").text
    assert editor.post("/groups/shop/early/reset", data=reset_form(preview)).url.path == "/groups/shop/early"
    with client.writer("shop", "unread") as writer:
        writer.write(b"after", "key").result()
    with client.reader_group("shop", "early") as group, group.reader() as reader:
        assert next(iter(reader)).event == b"after"


@pytest.mark.parametrize("cuts", [[], ["x"], ["H4sIAAAAAAAA"]])
def test_a_reset_without_cuts_is_refused(editor: httpx.Client, cuts):
    assert editor.post("/groups/shop/slow/reset", data={"cut": cuts}).status_code == 400


def test_a_reset_to_what_is_no_place_is_refused(editor: httpx.Client):
    assert "is not earliest" in unescape(editor.get("/groups/shop/slow/reset?to=soon").text)
    assert editor.get("/groups/shop/slow/reset?to=0@0:1").status_code == 400


def test_letters_are_replayed_and_dropped(editor: httpx.Client, client: Headrace, monkeypatch):
    asked = []
    for name in ("replay", "drop"):
        monkeypatch.setattr(
            type(client.admin.dead_letters), name, lambda self, letter, name=name: asked.append((name, letter))
        )
    letter = "1700000000000-0123456789abcdef0123456789abcdef"
    for name in ("replay", "drop"):
        assert editor.post(f"/dead-letters/{letter}/{name}").url.path == "/dead-letters"
    assert asked == [("replay", letter), ("drop", letter)]
    assert editor.post("/dead-letters/none/drop").status_code == 400
    assert len(asked) == 2


def test_only_its_own_forms_change_anything(editor: httpx.Client, client: Headrace):
    client.admin.create_stream("shop", "guarded", scaling=ScalingPolicy.fixed(1))
    form = {"segment": "0@0"}
    for origin in ("https://evil.example", "null"):
        answer = editor.post("/streams/shop/guarded/split", data=form, headers={"origin": origin})
        assert answer.status_code == 403
    del editor.headers["origin"]
    assert editor.post("/streams/shop/guarded/split", data=form).status_code == 403
    assert editor.get("/streams/shop/guarded/split").status_code in (404, 405)
    editor.cookies.clear()
    editor.headers["origin"] = str(editor.base_url).rstrip("/")
    assert editor.post("/streams/shop/guarded/split", data=form).status_code == 401
    assert len(active(client, "guarded")) == 1


def test_what_is_no_form_is_refused(editor: httpx.Client, monkeypatch):
    monkeypatch.setattr(change_pages, "FORM_BYTES_MAX", 1_000)
    target = "/streams/shop/orders/split"
    for body in (b"segment", b"\xff=1", b"a=1&" * 999, b"segment=" + b"0" * 1_000):
        assert editor.post(target, content=body).status_code == 400


def test_a_reading_console_has_no_form_that_changes(browser: httpx.Client):
    for path in ("/streams/shop/orders", "/groups/shop/slow", "/dead-letters"):
        text = browser.get(path).text
        assert 'method="post"' not in text
        assert "read only" in text
    assert browser.get("/groups/shop/slow/reset").status_code == 404


def test_a_reset_counts_up_to_the_groups_end_cut(editor: httpx.Client, client: Headrace):
    client.admin.create_stream("shop", "bounded", scaling=ScalingPolicy.fixed(1))
    with client.writer("shop", "bounded") as writer:
        writer.write(b"x" * 992, "key").result()
        end = client.admin.stream_cut("shop", "bounded")
        writer.write(b"x" * 4_992, "key").result()
    stream = GroupStream("shop", "bounded", end=end)
    client.admin.reader_groups.create("shop", "bounded", ReaderGroupConfiguration((stream,)))
    client.reader_group("shop", "bounded").close()
    preview = editor.get("/groups/shop/bounded/reset?to=earliest").text
    assert "stay where they are" in preview
    assert "6.0 kB" not in preview
    assert "is before" in unescape(editor.get("/groups/shop/bounded/reset?to=latest").text)


def test_a_reset_leaves_no_stream_of_the_group_out(editor: httpx.Client, client: Headrace):
    """A stream that was added after the preview would begin again at its head."""
    streams = [GroupStream("shop", name) for name in ("first", "second")]
    for each in streams:
        client.admin.create_stream("shop", each.stream, scaling=ScalingPolicy.fixed(1))
        with client.writer("shop", each.stream) as writer:
            writer.write(b"x" * 992, "key").result()
    groups = client.admin.reader_groups
    groups.create("shop", "grown", ReaderGroupConfiguration((streams[0],)))
    with client.reader_group("shop", "grown") as group:
        preview = reset_form(editor.get("/groups/shop/grown/reset?to=latest").text)
        group.reset("latest")
        added = GroupStream("shop", "second", start=client.admin.stream_cut("shop", "second"))
        view = groups.get("shop", "grown")
        groups.update(view, ReaderGroupConfiguration((*view.configuration.streams, added)))
        answer = editor.post("/groups/shop/grown/reset", data=preview)
        assert answer.status_code == 412
        assert "shop/second" in answer.text
        view = groups.get("shop", "grown")
        assert [each.start is not None for each in view.configuration.streams] == [True, True]

"""What the console can change, if it was started with `--allow-changes`: scale, reset a group, replay and drop letters.

Each change is a form of a page, which is sent with POST and answered with a redirect to the page. What cannot be undone
asks once more: a reset shows what it does before it is done, and a letter is dropped in a second step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs, quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headrace.adapters.system_clock import local_now
from headrace.api.reader_groups import ReaderGroupView
from headrace.cli.parameters import ScopedName
from headrace.cli.segment import merged_range, split_parts
from headrace.client import StreamCut
from headrace.codec.places import parse_place, parse_segment
from headrace.codec.stream_cut_text import parse_stream_cut_text, stream_cut_text
from headrace.console.console_state import ConsoleState, named, text_parameter
from headrace.console.store_reach import AWAY, STORE_PATIENCE_S
from headrace.model.dead_letters import check_letter_id
from headrace.model.errors import IllegalStateError, InvalidRequestError, UnavailableError
from headrace.model.scaling import MERGED_MIN

FORM_BYTES_MAX = 4 << 20
"""The cuts of a group's streams; one of 1,000 segments has some 10 KB."""

FIELDS_MAX = 1_000
START = "start"
"""The place of a group's start cuts; the other places are those of all commands."""

Fields = Mapping[str, Sequence[str]]


class NewStart(NamedTuple):
    """Where a group will begin in one stream, and the bytes from there to the tail, or to its end cut."""

    stream: ScopedName
    cut: StreamCut
    text: str
    unread: int
    was_unread: int | None
    """How far behind the group is now; None if that is not known."""

    @property
    def again(self) -> int:
        """Bytes that readers will read again; of those that they will skip, with a minus."""
        return 0 if self.was_unread is None else self.unread - self.was_unread


class ChangePages:
    """The handlers. They run in threads."""

    def __init__(self, console: ConsoleState) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        return [
            Route("/streams/{scope}/{name}/split", _form(self.split), methods=["POST"]),
            Route("/streams/{scope}/{name}/merge", _form(self.merge), methods=["POST"]),
            Route("/groups/{scope}/{name}/reset", self.reset_preview, methods=["GET"]),
            Route("/groups/{scope}/{name}/reset", _form(self.reset), methods=["POST"]),
            Route("/dead-letters/{letter}/replay", _form(self.replay), methods=["POST"]),
            Route("/dead-letters/{letter}/drop", _form(self.drop), methods=["POST"]),
        ]

    def split(self, request: Request, fields: Fields) -> Response:
        stream, admin = named(request), self._console.admin
        segment, at = parse_segment(_text(fields, "segment")), _text(fields, "at", needed=False)
        parts = split_parts(admin, stream, segment, at=[_key_position(at)] if at else None)
        admin.scale_stream(*stream, seal=[segment], ranges=parts)
        return _back(f"/streams/{stream.scope}/{stream.name}")

    def merge(self, request: Request, fields: Fields) -> Response:
        stream, admin = named(request), self._console.admin
        segments = [parse_segment(part) for part in _text(fields, "segments").replace(",", " ").split()]
        if len(set(segments)) < MERGED_MIN:
            raise InvalidRequestError("name two neighbouring segments or more, as 2@1 3@1")
        whole = merged_range(admin, stream, segments)
        admin.scale_stream(*stream, seal=list(dict.fromkeys(segments)), ranges=[whole])
        return _back(f"/streams/{stream.scope}/{stream.name}")

    def reset_preview(self, request: Request) -> Response:
        """What a reset to a place would do, with the form that does it."""
        name = named(request, "reader group")
        place = text_parameter(request, "to") or START
        view = self._console.admin.reader_groups.get(*name)
        known = self._console.groups.look(view).behind
        starts = []
        for stream, cut, end in self._cuts(view, place):
            unread = self._console.admin.stream_cut_distance(*stream, from_cut=cut, to_cut=end)
            behind = None if known is None else known.get(str(stream), 0)
            starts.append(NewStart(stream, cut, stream_cut_text(cut), unread, behind))
        return self._console.page(request, "group_reset.html", name=name, place=place, starts=starts)

    def reset(self, request: Request, fields: Fields) -> Response:
        """Move the group to the cuts of the preview."""
        name = named(request, "reader group")
        cuts = [parse_stream_cut_text(text) for text in fields.get("cut", ())]
        if not cuts:
            raise InvalidRequestError("a reset needs the stream cuts of its preview")
        shown = {ScopedName(cut.scope, cut.stream) for cut in cuts}
        read = self._console.admin.reader_groups.get(*name).configuration.streams
        if changed := shown ^ {ScopedName(each.scope, each.stream) for each in read}:
            raise IllegalStateError(  # a stream without a cut would begin again at its head
                f"the streams of group {name} are others than those of the preview, such as {min(map(str, changed))}: "
                "preview the reset again",
                code="reader_group_mismatch",
            )
        if not self._console.reach.to_group(name):
            raise UnavailableError(f"a reset writes to the store of the group's state, and {AWAY}")
        # Without a reader the group has no state yet: it begins now, so that a reader that joins meanwhile takes part.
        with self._console.client.reader_group(*name, give_up_after_s=STORE_PATIENCE_S) as group:
            group.reset(cuts)
        return _back(f"/groups/{name.scope}/{name.name}")

    def replay(self, request: Request, fields: Fields) -> Response:
        self._console.admin.dead_letters.replay(check_letter_id(request.path_params["letter"]))
        return _back("/dead-letters")

    def drop(self, request: Request, fields: Fields) -> Response:
        self._console.admin.dead_letters.drop(check_letter_id(request.path_params["letter"]))
        return _back("/dead-letters")

    def _cuts(self, view: ReaderGroupView, place: str) -> list[tuple[ScopedName, StreamCut, StreamCut | None]]:
        """The stream cut at a place of each stream of the group, and its end cut.

        Raises InvalidRequestError for what is not a place.
        """
        parsed = None if place == START else parse_place(place, local_now())
        if isinstance(parsed, dict):
            raise InvalidRequestError(f"{place[:100]!a} is a stream cut, and a group may have several streams")
        cuts = []
        for each in view.configuration.streams:
            stream = ScopedName(each.scope, each.stream)
            begins = each.start or "earliest" if parsed is None else parsed
            cuts.append((stream, self._console.reach.cut_at(stream, begins), each.end))
        return cuts


def _form(handler: Callable[[Request, Fields], Response]) -> Callable[[Request], object]:
    """An endpoint that reads the fields of a form, at most FORM_BYTES_MAX, and runs the handler in a thread."""

    async def endpoint(request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > FORM_BYTES_MAX:
                raise InvalidRequestError(f"the form has more than {FORM_BYTES_MAX} bytes")
        try:
            fields = parse_qs(body.decode("ascii"), strict_parsing=bool(body), max_num_fields=FIELDS_MAX)
        except ValueError as error:
            raise InvalidRequestError("this is not what a form of the console sends") from error
        return await run_in_threadpool(handler, request, fields)

    return endpoint


def _text(fields: Fields, name: str, *, needed: bool = True) -> str:
    text = next(iter(fields.get(name, ())), "").strip()
    if needed and not text:
        raise InvalidRequestError(f"the field {name} is empty")
    return text


def _key_position(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidRequestError(f"{text[:100]!a} is not a position from 0 to 1") from error


def _back(path: str) -> Response:
    return RedirectResponse(quote(path), 303)

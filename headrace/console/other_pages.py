"""The other pages: streams, groups, tables, the cluster, and dead letters."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headrace.api.cluster import StoreView
from headrace.api.streams import StreamView
from headrace.cli.parameters import ScopedName
from headrace.cli.stream_describe import Growth
from headrace.client import TableEntry
from headrace.codec.places import parse_number
from headrace.console.console_state import LONG_TEXT_MAX, ConsoleState, named, text_parameter
from headrace.console.group_watch import GROUPS_PER_PAGE
from headrace.model.errors import InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.names import check_known_name

STREAMS_PER_PAGE = 15
"""Each visible stream costs four requests, so that the page of 15 is read again every half a minute."""

STREAMS_S, GROUPS_S, GROUP_S, CLUSTER_S, LETTERS_S = 30, 20, 5, 10, 15
REQUESTS_AT_ONCE = 6
NAMES_PER_PAGE = 50
ENTRIES_PER_PAGE = 50
LETTERS_PER_PAGE = 50


class StreamRow(NamedTuple):
    """A stream in the list. All but its name is None if it was deleted meanwhile."""

    stream: ScopedName
    view: StreamView | None = None
    kept: int | None = None
    growth: Growth | None = None
    open_transactions: int | None = None


class StoreTile(NamedTuple):
    """A store on the page of the cluster. `copies` is of how many containers it has a copy of the log."""

    view: StoreView
    lease_left_s: float
    copies: int
    container_count: int


class OtherPages:
    """The handlers. They run in threads."""

    def __init__(self, console: ConsoleState) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        return [
            Route("/", self.home),
            Route("/streams", self.streams),
            Route("/groups", self.groups),
            Route("/groups/{scope}/{name}", self.group),
            Route("/tables", self.tables),
            Route("/tables/{scope}/{name}", self.table),
            Route("/cluster", self.cluster),
            Route("/dead-letters", self.dead_letters),
        ]

    def home(self, request: Request) -> Response:
        return RedirectResponse("/streams", 303)

    def streams(self, request: Request) -> Response:
        scopes, scope = self._scopes(request)
        names = [summary.stream for summary in self._console.admin.list_streams(scope)] if scope else []
        shown, page, pages = _page(names, request, STREAMS_PER_PAGE)
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            rows = list(pool.map(lambda name: self._row(ScopedName(scope, name)), shown))
        return self._console.page(
            request, "streams.html", scopes=scopes, scope=scope, rows=rows, page=page, pages=pages, every=STREAMS_S
        )

    def groups(self, request: Request) -> Response:
        scopes, scope = self._scopes(request)
        groups = self._console.groups
        shown, page, pages = _page(groups.names(scope) if scope else [], request, GROUPS_PER_PAGE)
        views = groups.configurations(scope, shown) if scope else []
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            facts = list(pool.map(partial(groups.look, is_listed=True), views))
        return self._console.page(
            request, "groups.html", scopes=scopes, scope=scope, facts=facts, page=page, pages=pages, every=GROUPS_S
        )

    def group(self, request: Request) -> Response:
        name = named(request, "reader group")
        view = self._console.admin.reader_groups.get(*name)
        facts = self._console.groups.look(view)
        return self._console.page(request, "group.html", name=name, facts=facts, every=GROUP_S)

    def tables(self, request: Request) -> Response:
        scopes, scope = self._scopes(request)
        names = self._console.admin.tables.list(scope) if scope else []
        shown, page, pages = _page(names, request, NAMES_PER_PAGE)
        return self._console.page(
            request, "tables.html", scopes=scopes, scope=scope, tables=shown, page=page, pages=pages
        )

    def table(self, request: Request) -> Response:
        name = named(request, "key-value table")
        view = self._console.admin.tables.get(*name)
        after = _key(text_parameter(request, "after", LONG_TEXT_MAX))
        entries = self._entries(name, view.primary_key_length, after)
        if entries is None:
            return self._console.page(request, "table.html", name=name, view=view, entries=None)
        shown = entries[:ENTRIES_PER_PAGE]
        following = shown[-1].key.primary + shown[-1].key.secondary if len(entries) > len(shown) else None
        return self._console.page(
            request,
            "table.html",
            name=name,
            view=view,
            entries=shown,
            following=None if following is None else following.hex(),
        )

    def _entries(self, name: ScopedName, primary_key_length: int, after: bytes) -> list[TableEntry] | None:
        """The entries of a page, and one of the next page; None if the stores are not reached."""

        def read() -> list[TableEntry]:
            entries: list[TableEntry] = []
            with self._console.client.key_value_table(*name) as table:
                for entry in table.entries(first=after[:primary_key_length] or None, page=ENTRIES_PER_PAGE + 1):
                    if entry.key.primary + entry.key.secondary > after or not after:
                        entries.append(entry)
                    if len(entries) > ENTRIES_PER_PAGE:
                        break
            return entries

        reach = self._console.reach
        with suppress(UnavailableError):
            return reach.store_answer(read) if reach.to_table(name) else None
        return None

    def cluster(self, request: Request) -> Response:
        cluster = self._console.admin.cluster
        stores, containers, logs = cluster.get(), cluster.containers().containers, cluster.logs().logs
        copies = Counter(member.store for log in logs for member in log.members)
        now_ms = self._console.clock.now_ms()
        zones: dict[str, list[StoreTile]] = {}
        for store in stores.stores:
            left_s = (store.lease_until_ms - now_ms) / 1000
            tile = StoreTile(store, left_s, copies[store.store_id], len(store.containers))
            zones.setdefault(store.zone, []).append(tile)
        return self._console.page(
            request,
            "cluster.html",
            cluster=stores,
            zones=sorted(zones.items()),
            containers=containers,
            unserved={one.container: one.state for one in containers if one.state != "SERVED"},
            logs={log.container: log for log in logs},
            is_replicated=any(log.copies for log in logs),
            every=CLUSTER_S,
        )

    def dead_letters(self, request: Request) -> Response:
        after = text_parameter(request, "after") or None
        page = self._console.admin.dead_letters.page(limit=LETTERS_PER_PAGE, after=after)
        return self._console.page(request, "dead_letters.html", page=page, every=LETTERS_S)

    def _scopes(self, request: Request) -> tuple[list[str], str]:
        """All scopes, and the chosen one: by default the first that a person has made; empty without any."""
        scopes = self._console.admin.list_scopes()
        chosen = text_parameter(request, "scope")
        if chosen:
            return scopes, check_known_name("scope", chosen)
        own = [scope for scope in scopes if not scope.startswith("_")]
        return scopes, (own or scopes or [""])[0]

    def _row(self, stream: ScopedName) -> StreamRow:
        admin = self._console.admin
        try:
            view = admin.get_stream(*stream)
            return StreamRow(
                stream,
                view,
                self._console.kept(stream, view),
                self._console.growth(stream) if view.segments else None,
                len(admin.transactions.list_open(*stream)),
            )
        except NotFoundError:
            return StreamRow(stream)


def _page(names: list[str], request: Request, size: int) -> tuple[list[str], int, int]:
    """The names of the page that the address asks for, its number from 1, and the number of pages."""
    asked = text_parameter(request, "page")
    pages = max(1, -(-len(names) // size))
    number = min(max(1, parse_number(asked)) if asked else 1, pages)
    return names[(number - 1) * size : number * size], number, pages


def _key(text: str) -> bytes:
    """Raises InvalidRequestError for what is not hexadecimal digits."""
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise InvalidRequestError(f"{text[:100]!a} is not a key in hexadecimal digits") from error

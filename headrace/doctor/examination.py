"""Asks the controller for what the checks need. It sends requests that change nothing."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from itertools import islice
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import httpx

from headrace.doctor.cluster_checks import AnswerFacts, ClusterFacts, answer_findings, cluster_findings
from headrace.doctor.findings import Finding, failure, skipped, warning, well
from headrace.model.errors import HeadraceError, IllegalStateError, NotFoundError, UnauthorizedError, UnavailableError
from headrace.ports.clock import Clock

if TYPE_CHECKING:
    from headrace.api.dead_letters import DeadLetterView
    from headrace.api.upgrades import UpgradeView
    from headrace.client import Headrace

TIMEOUT_S: Final = 10.0
LETTER_PAGES_MAX: Final = 10
"""Of a thousand letters each. Their number is not limited, and those that are done stay in the list."""

STREAMS_LOOKED_AT_MAX: Final = 10
"""How many streams the search looks at for one that has segments. One that is being created has none yet."""

_UNSIGNED_PATH: Final = "/v1/scopes?limit=1"
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def examine_deployment(
    client: Headrace,
    url: str,
    clock: Clock,
    transport: httpx.BaseTransport | None = None,
) -> list[Finding]:
    """What the checks of the control plane, the stores and their security find.

    Raises:
        HeadraceError: the controller does not answer, or refuses these credentials.
    """
    admin = client.admin
    letters, has_more = _letters(client)
    facts = ClusterFacts(
        admin.cluster.get(),
        admin.cluster.containers(),
        admin.cluster.logs(),
        letters,
        has_more_letters=has_more,
        upgrade=_upgrade(client),
    )
    answer = _answer(url, clock, transport)
    skew_ms = 0 if answer is None or answer.date_ms is None else answer.now_ms - answer.date_ms
    findings = cluster_findings(facts, clock.now_ms() - skew_ms)
    if answer is None:
        reason = "the controller did not answer a request without a signature"
        findings += [skipped("clock", reason), skipped("signatures", reason)]
    else:
        findings += answer_findings(answer)
    return [*findings, _store_calls(client), _tokens(client), _tls(client)]


def _upgrade(client: Headrace) -> UpgradeView | None:
    """None: the controller is of a release without this route."""
    try:
        return client.admin.cluster.upgrade()
    except NotFoundError:
        return None


def _letters(client: Headrace) -> tuple[list[DeadLetterView], bool]:
    """The oldest letters, and whether there are more."""
    letters: list[DeadLetterView] = []
    after: str | None = None
    for _ in range(LETTER_PAGES_MAX):
        page = client.admin.dead_letters.page(after=after)
        letters += page.letters
        after = page.next_after
        if after is None:
            break
    return letters, after is not None


def _answer(url: str, clock: Clock, transport: httpx.BaseTransport | None) -> AnswerFacts | None:
    """Sends a request without a signature: its answer has a date, and should be a refusal. None: there was none."""
    is_on_loopback = urlsplit(url).hostname in _LOOPBACK
    try:
        with httpx.Client(transport=transport, timeout=TIMEOUT_S, trust_env=not is_on_loopback) as http:
            response = http.get(url.rstrip("/") + _UNSIGNED_PATH)
    except httpx.HTTPError:
        return None
    return AnswerFacts(response.status_code, _date_ms(response), clock.now_ms(), is_on_loopback)


def _date_ms(response: httpx.Response) -> int | None:
    try:
        return int(parsedate_to_datetime(response.headers["date"]).timestamp() * 1000)
    except (KeyError, ValueError, OverflowError):
        return None


def _store_calls(client: Headrace) -> Finding:
    """The functions have their own way to the stores and their own tokens: clients may reach stores that they do not.

    The function asks the stores of a stream for its tail, which only they know.
    """
    try:
        stream = _some_stream(client)
        if stream is None:
            return skipped("store-calls", "there is no stream to ask the stores about")
        cut = client.admin.stream_cut(*stream)
    except UnavailableError as error:
        return failure("store-calls", error.message)
    except UnauthorizedError as error:
        return skipped("store-calls", f"{error.message}; it needs the managed policy headrace-read-streams")
    except HeadraceError as error:  # the stream was deleted meanwhile
        return skipped("store-calls", error.message)
    return well(
        "store-calls", f"stores answer the controller about {len(cut.positions)} segments of {'/'.join(stream)}"
    )


def _some_stream(client: Headrace) -> tuple[str, str] | None:
    """Scope and name of a stream that has segments."""
    admin = client.admin
    streams = (each for scope in admin.list_scopes() for each in admin.list_streams(scope))
    for each in islice(streams, STREAMS_LOOKED_AT_MAX):
        if admin.get_stream(each.scope, each.stream).state.is_readable:
            return each.scope, each.stream
    return None


def _tokens(client: Headrace) -> Finding:
    if client.admin.delegation_tokens.demanded:
        return well("tokens", "the controller says that stores demand them")
    return warning("tokens", "who reaches a store may read and write every stream")


def _tls(client: Headrace) -> Finding:
    try:
        authorities = client.admin.trust.authorities().certificates
    except IllegalStateError:
        return warning("tls", "no authority is published: events and tokens are sent in clear text")
    except HeadraceError as error:
        return skipped("tls", error.message)
    return well("tls", f"published authorities: {len(authorities)}")

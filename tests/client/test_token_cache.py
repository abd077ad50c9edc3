"""How tokens are fetched, kept and renewed, without connections."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import wire
from headrace.api.delegation_tokens import IssuedToken
from headrace.client import delegation_tokens
from headrace.client.delegation_tokens import AsyncDelegationTokens
from headrace.client.http_api import HttpApi
from headrace.model.access import Access, allows, reader_group_resource, stream_resource, table_resource
from headrace.model.errors import CorruptError, HeadraceError, NotFoundError, UnauthorizedError, UnavailableError
from headrace.wire.required_access import REQUIRED_ACCESS

pytestmark = pytest.mark.anyio

LIFE_S = 600.0
READ = ("GET", "/v1/scopes/s/streams/t/delegation-token")
WRITE = ("POST", "/v1/scopes/s/streams/t/delegation-token")
MANAGE = ("PUT", "/v1/scopes/s/streams/t/delegation-token")
SEGMENT = "s/t/0.#epoch.0"
NO_TOKEN = {"token": "", "expiresMs": 0}


class _Api:
    """Issues tokens that are numbered. `problem` is raised instead; requests wait while `gate` is closed."""

    url = "http://controller"

    def __init__(self) -> None:
        self.demands_tokens = True
        self.now_s = 1_000.0
        self.requests: list[tuple[str, str]] = []
        self.problem: HeadraceError | None = None
        self.answer: dict[str, Any] | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def request(self, method: str, path: str) -> dict[str, Any]:
        self.requests.append((method, path))
        await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        if self.answer is not None:
            return self.answer
        return {"token": f"token-{len(self.requests)}", "expiresMs": int((self.now_s + LIFE_S) * 1000)}


def _tokens(api: _Api) -> AsyncDelegationTokens:
    return AsyncDelegationTokens(
        cast(HttpApi, api), now_s=lambda: api.now_s, monotonic_s=lambda: api.now_s, jitter=lambda: 0.0
    )


def _reading(name: str = "t") -> wire.WireCommand:
    return wire.ReadSegment(f"s/{name}/0.#epoch.0", 0, 1)


def _writing() -> wire.WireCommand:
    return wire.SetupAppend(7, 1, "s/t/0.#epoch.0")


def _of(command: wire.WireCommand | None) -> str:
    return cast(str, command.delegation_token)  # type: ignore[union-attr]


async def test_requests_at_once_share_one_fetch() -> None:
    api = _Api()
    tokens = _tokens(api)
    results = await asyncio.gather(*(tokens.attached(_reading()) for _ in range(50)))
    assert {_of(command) for command in results} == {"token-1"}
    assert api.requests == [READ]
    assert _of(tokens.ready(_reading())) == "token-1"


async def test_a_token_for_writing_is_used_to_read() -> None:
    api = _Api()
    tokens = _tokens(api)
    await tokens.attached(_writing())
    assert _of(tokens.ready(_reading())) == "token-1"
    assert tokens.ready(_reading("other")) is None
    assert api.requests == [WRITE]


async def test_truncation_asks_for_a_token_that_manages() -> None:
    api = _Api()
    tokens = _tokens(api)
    written = _of(await tokens.attached(_writing()))
    managed = _of(await tokens.attached(wire.TruncateSegment(1, SEGMENT, 5)))
    assert api.requests == [WRITE, MANAGE]
    assert written != managed
    assert _of(await tokens.attached(_writing())) == written, "a writer renews its own token"
    await tokens.attached(wire.TruncateSegment(1, "s/_RGg/0.#epoch.0", 5))
    assert api.requests[2:] == [("POST", "/v1/scopes/s/reader-groups/g/delegation-token")]


async def test_a5_a_life_takes_one_request_while_it_is_used() -> None:
    api = _Api()
    tokens = _tokens(api)
    await tokens.attached(_reading())
    api.now_s += LIFE_S * 0.8 - 1
    assert _of(tokens.ready(_reading())) == "token-1"
    assert not tokens._fetches
    api.now_s += 1
    assert _of(tokens.ready(_reading())) == _of(tokens.ready(_reading())) == "token-1"
    await asyncio.gather(*tokens._fetches.values())
    assert _of(tokens.ready(_reading())) == "token-2"
    assert api.requests == [READ, READ]


async def test_a_failed_renewal_is_repeated_later() -> None:
    api = _Api()
    tokens = _tokens(api)
    await tokens.attached(_reading())
    api.now_s += LIFE_S * 0.8
    api.problem = UnavailableError("down")
    for _ in range(3):
        assert _of(tokens.ready(_reading())) == "token-1"
        await asyncio.gather(*tokens._fetches.values(), return_exceptions=True)
    assert len(api.requests) == 2
    api.now_s += delegation_tokens.RENEWAL_PAUSE_S
    tokens.ready(_reading())
    await asyncio.gather(*tokens._fetches.values(), return_exceptions=True)
    assert len(api.requests) == 3
    api.now_s += LIFE_S
    assert tokens.ready(_reading()) is None
    with pytest.raises(UnavailableError):
        await tokens.attached(_reading())


async def test_the_jitter_only_makes_renewals_earlier() -> None:
    api = _Api()
    tokens = _tokens(api)
    tokens._jitter = lambda: 1.0
    await tokens.attached(_reading())
    ((_, held),) = tokens._held.items()
    assert held.due_s == pytest.approx(1_000 + 0.7 * LIFE_S)


async def test_few_tokens_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "TOKENS_HELD_MAX", 3)
    api = _Api()
    tokens = _tokens(api)
    for name in "abca":
        await tokens.attached(_reading(name))
    await tokens.attached(_reading("d"))
    held = {name for name in "abcd" if tokens.ready(_reading(name)) is not None}
    assert held == {"a", "c", "d"}


async def test_a_clock_that_is_wrong_costs_few_requests() -> None:
    api = _Api()
    tokens = AsyncDelegationTokens(
        cast(HttpApi, api), now_s=lambda: api.now_s + 2 * LIFE_S, monotonic_s=lambda: api.now_s, jitter=lambda: 0.0
    )
    for _ in range(5):
        await tokens.attached(_reading())
    assert len(api.requests) == 1


async def test_refused_tokens_are_dropped_by_all() -> None:
    """The second request finds the token that the first one has fetched."""
    api = _Api()
    tokens = _tokens(api)
    first, second = await tokens.attached(_writing()), await tokens.attached(_reading())
    expired = wire.AuthTokenCheckFailed(7, "", wire.TOKEN_EXPIRED)
    assert _of(await tokens.after_refusal(first, expired, 0)) == "token-2"
    assert _of(await tokens.after_refusal(second, expired, 0)) == "token-2"
    assert api.requests == [WRITE, WRITE]


async def test_controllers_that_do_not_issue_tokens() -> None:
    api = _Api()
    tokens = _tokens(api)
    for problem, message in (
        (
            UnauthorizedError("status 403"),
            "no permission to read stream s/t: the credentials.*GET /v1/scopes/s/streams/t",
        ),
        (NotFoundError("there is no such route"), "update the controller"),
    ):
        api.problem = problem
        with pytest.raises(UnauthorizedError, match=message):
            await tokens.attached(_reading())
    api.problem, api.answer = None, NO_TOKEN
    refused = wire.AuthTokenCheckFailed(7, "", wire.TOKEN_CHECK_FAILED)
    with pytest.raises(UnauthorizedError, match="set HEADRACE_TOKENS=required for the controller too"):
        await tokens.after_refusal(_reading(), refused, 0)
    api.demands_tokens = True
    api.answer = {"token": "secret text"}
    with pytest.raises(CorruptError) as failed:
        await tokens.attached(_reading())
    assert "secret text" not in repr(failed.value) + str(failed.value.__cause__)


async def test_tokens_that_are_turned_off() -> None:
    """A client uses the tokens that it has to their end, since stores may demand them until they are updated, too."""
    api = _Api()
    tokens = _tokens(api)
    await tokens.attached(_reading())
    api.answer = NO_TOKEN
    api.now_s += LIFE_S * 0.8
    assert _of(await tokens.attached(_reading("other"))) == ""
    assert _of(tokens.ready(_reading())) == "token-1"
    await asyncio.gather(*tokens._fetches.values())
    assert _of(tokens.ready(_reading())) == "token-1"
    api.now_s += LIFE_S * 0.2
    assert _of(await tokens.attached(_reading())) == ""
    assert not tokens.demanded
    assert await tokens.to_read("s", "t") is None


async def test_writers_whose_tokens_are_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are set up without one at the end of theirs, and ask for no other one then."""
    monkeypatch.setattr(delegation_tokens, "RENEWAL_PAUSE_S", 0.001)
    api, called = _Api(), asyncio.Event()
    tokens = _tokens(api)
    used = _of(await tokens.attached(_writing()))
    api.answer = NO_TOKEN
    api.now_s += LIFE_S * 0.8
    assert tokens.when_replaced(SEGMENT, used, called.set) is not None
    await asyncio.sleep(0.02)
    assert not called.is_set()
    assert len(api.requests) == 2
    api.now_s += LIFE_S * 0.2
    await called.wait()
    assert tokens.when_replaced(SEGMENT, used, called.set) is None
    assert len(api.requests) == 3


async def test_writers_without_a_token_go_on_without_one() -> None:
    """Tokens are turned off, while one for something else is still valid: another set-up would have none either."""
    api, called = _Api(), asyncio.Event()
    tokens = _tokens(api)
    await tokens.attached(_reading("other"))
    api.answer = NO_TOKEN
    used = _of(await tokens.attached(_writing()))
    assert used == ""
    assert tokens.demanded
    waits = tokens.when_replaced(SEGMENT, used, called.set)
    assert waits is not None
    await waits
    assert not called.is_set()
    api.answer = None
    waits = tokens.when_replaced(SEGMENT, used, called.set)
    assert waits is not None
    await waits
    assert called.is_set(), "they are turned on again"


async def test_a_writer_with_an_older_token_hears_of_the_newer_one() -> None:
    """Its set-up was sent just before the token was replaced, and answered after that."""
    api, called = _Api(), asyncio.Event()
    tokens = _tokens(api)
    await tokens.attached(_writing())
    api.now_s += LIFE_S * 0.8
    used = _of(tokens.ready(_writing()))
    await asyncio.gather(*tokens._fetches.values())
    assert used == "token-1" != _of(tokens.ready(_writing()))
    assert tokens.when_replaced(SEGMENT, used, called.set) is not None
    await called.wait()
    called.clear()
    waits = tokens.when_replaced(SEGMENT, "token-2", called.set)
    assert waits is not None
    await asyncio.sleep(0.01)
    assert not called.is_set()
    waits.cancel()


async def test_a_controller_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request fails as if the store were away, and the next one waits for the same answer."""
    monkeypatch.setattr(delegation_tokens, "FETCH_TIMEOUT_S", 0.001)
    api = _Api()
    tokens = _tokens(api)
    api.gate.clear()
    with pytest.raises(UnavailableError, match="has not issued a token to read stream s/t in time"):
        await tokens.attached(_reading())
    monkeypatch.setattr(delegation_tokens, "FETCH_TIMEOUT_S", 30.0)
    api.gate.set()
    assert _of(await tokens.attached(_reading())) == "token-1"
    assert api.requests == [READ]


async def test_tokens_go_to_other_processes() -> None:
    api = _Api()
    tokens, other_api = _tokens(api), _Api()
    other_api.demands_tokens = False
    issued = await tokens.to_read("s", "t")
    assert issued == IssuedToken("token-1", int((1_000 + LIFE_S) * 1000))
    other = _tokens(other_api)
    await other.offer("s", "t", issued)
    assert _of(other.ready(_reading())) == "token-1"
    other_api.now_s += LIFE_S - delegation_tokens.SHIPPED_LEFT_S - 1
    assert _of(other.ready(_reading())) == "token-1"
    other_api.now_s += 1
    assert other.ready(_reading()) is None
    await other.offer("s", "t", issued)
    assert other.ready(_reading()) is None
    await other.attached(_reading())
    assert other_api.requests == [READ]


async def test_a_shipped_token_does_not_replace_a_newer_one() -> None:
    api = _Api()
    tokens = _tokens(api)
    await tokens.attached(_reading())
    await tokens.offer("s", "t", IssuedToken("older", int((1_000 + LIFE_S / 2) * 1000)))
    assert _of(tokens.ready(_reading())) == "token-1"


async def test_the_driver_ships_fresh_tokens() -> None:
    api = _Api()
    tokens = _tokens(api)
    for _ in range(3):
        await tokens.to_read("s", "t")
    assert api.requests == [READ]
    api.now_s += LIFE_S * 0.8
    issued = await tokens.to_read("s", "t")
    assert issued is not None
    assert issued.token == "token-2"
    api.demands_tokens = False
    assert await tokens.to_read("s", "t") is None


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.-]{0,20}", fullmatch=True)


@pytest.mark.parametrize("access", [Access.READ, Access.READ_UPDATE, Access.MANAGE])
@given(scope=NAMES, name=NAMES, kind=st.sampled_from(["streams", "reader-groups", "key-value-tables", "marks"]))
def test_a_token_opens_the_segment_it_was_fetched_for(access: Access, scope: str, name: str, kind: str) -> None:
    """The path says what the controller grants, and the store asks whether that covers the segment."""
    form, path, resource = {
        "streams": ("{}", "streams", stream_resource),
        "reader-groups": ("_RG{}", "reader-groups", reader_group_resource),
        "key-value-tables": ("{}_kvtable", "key-value-tables", table_resource),
        "marks": ("_MARK{}", "streams", stream_resource),
    }[kind]
    segment = f"{scope}/{form.format(name)}/0.#epoch.0"
    key = delegation_tokens._key_of_segment(segment, access)
    assert key is not None
    assert key.path == f"/v1/scopes/{scope}/{path}/{name}/delegation-token"
    needed = min(access, Access.READ_UPDATE) if kind in ("reader-groups", "key-value-tables") else access
    is_written_mark = kind == "marks" and access > Access.READ
    assert allows({resource(scope, name): key.access}, segment, needed) or is_written_mark


def test_every_request_of_a_client_has_a_token() -> None:
    """Commands without one are no requests to a segment, or appends after a set-up."""
    named = {kind for kind in wire.fields.LAYOUTS if "delegation_token" in kind.__struct_fields__}
    assert named == set(REQUIRED_ACCESS)

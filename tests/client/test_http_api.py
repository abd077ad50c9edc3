"""Errors come back as their classes; requests are repeated when, and only when, that can help and does no harm."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest
from scripted_cluster import Cluster

from headrace.client import connect, http_api
from headrace.client.http_api import HttpApi
from headrace.model import errors
from headrace.model.stream_cuts import StreamCut

STREAM = {
    "scopeName": "s",
    "streamName": "t",
    "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2},
    "retentionPolicy": None,
    "streamTags": [],
    "state": "ACTIVE",
    "epoch": 0,
    "segments": 2,
    "creationTime": 5,
    "configurationVersion": 0,
}


def _error(status: int, code: str, retry: str = "never", **details: Any) -> httpx.Response:
    return httpx.Response(
        status, json={"error": {"code": code, "message": "said so", "retry": retry, "details": details}}
    )


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (_error(400, "invalid_request"), errors.InvalidRequestError, "invalid_request"),
        (_error(400, "invalid_name", kind="scope"), errors.InvalidRequestError, "invalid_name"),
        (_error(403, "unauthorized"), errors.UnauthorizedError, "unauthorized"),
        (_error(404, "not_found"), errors.NotFoundError, "not_found"),
        (_error(409, "already_exists"), errors.AlreadyExistsError, "already_exists"),
        (_error(409, "something_exists"), errors.AlreadyExistsError, "something_exists"),
        (_error(410, "truncated"), errors.TruncatedError, "truncated"),
        (_error(412, "sealed"), errors.SealedError, "sealed"),
        (_error(412, "scope_not_empty"), errors.IllegalStateError, "scope_not_empty"),
        (_error(500, "internal"), errors.HeadraceError, "internal"),
        (httpx.Response(403, json={"message": "Forbidden"}), errors.UnauthorizedError, "unauthorized"),
        (httpx.Response(404, json={"message": "Not Found"}), errors.NotFoundError, "not_a_controller"),
        (httpx.Response(404, text="<html>"), errors.CorruptError, "not_a_controller"),
        (httpx.Response(404, text="[" * 100_000), errors.CorruptError, "not_a_controller"),
        (httpx.Response(200, text="[" * 100_000), errors.CorruptError, "not_a_controller"),
        (httpx.Response(200, text="<html>"), errors.CorruptError, "not_a_controller"),
        (httpx.Response(200, json=[1]), errors.CorruptError, "not_a_controller"),
        (httpx.Response(200, json={"scopeName": "s"}), errors.CorruptError, "corrupt"),
        (httpx.Response(200, json={**STREAM, "epoch": "x"}), errors.CorruptError, "corrupt"),
    ],
)
def test_errors_come_back_as_their_classes(
    cluster: Cluster, answer: httpx.Response, kind: type[errors.HeadraceError], code: str
) -> None:
    cluster.answers = [answer]
    with cluster.client() as headrace, pytest.raises(kind) as caught:
        headrace.admin.get_stream("s", "t")
    assert type(caught.value) is kind
    assert caught.value.specific_code == code


def test_ranges_of_the_last_release_get_their_stream(cluster: Cluster) -> None:
    """A controller that is not updated yet does not name the stream in them."""
    ranges = {"segments": [], "from": {"0": 1}, "to": {"0": 9}}
    cut = ranges | {"reachedEnd": True, "leftBytes": 0, "lost": [], "lostBytes": 0}
    cluster.answers = [httpx.Response(200, json=ranges), httpx.Response(200, json=cut)]
    with cluster.client() as headrace:
        for found in (headrace.admin.segments_between("s", "t"), headrace.admin.next_cut("s", "t")):
            assert (found.start, found.end) == (StreamCut.of("s", "t", {0: 1}), StreamCut.of("s", "t", {0: 9}))


def test_details_and_message_travel(cluster: Cluster) -> None:
    cluster.answers = [_error(400, "invalid_name", characters_max=255)]
    with cluster.client() as headrace, pytest.raises(errors.InvalidRequestError, match="said so") as caught:
        headrace.admin.get_stream("s", "t")
    assert caught.value.details == {"characters_max": 255}


@pytest.mark.parametrize(
    "passing",
    [
        _error(503, "unavailable", "later"),
        _error(429, "throttled", "later"),
        _error(409, "conflict", "now"),
        _error(409, "stream_is_busy", "now"),
        _error(421, "fenced", "elsewhere"),
        _error(500, "internal", "later"),
        httpx.Response(500, json={"message": "Internal Server Error"}),
        httpx.Response(502, text="bad gateway"),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.DecodingError("no gzip"),
    ],
)
def test_what_can_pass_is_repeated(cluster: Cluster, passing: httpx.Response | Exception) -> None:
    cluster.answers = [passing, passing, httpx.Response(200, json=STREAM)]
    with cluster.client() as headrace:
        assert headrace.admin.get_stream("s", "t").state == "ACTIVE"
    assert len(cluster.requests) == 3


def test_repeating_ends(cluster: Cluster) -> None:
    cluster.answers = [_error(503, "unavailable", "later")] * 1000
    with cluster.client(retry_s=0.05) as headrace, pytest.raises(errors.UnavailableError, match="said so"):
        headrace.admin.get_stream("s", "t")
    assert 2 <= len(cluster.requests) < 20


def test_a_creation_whose_outcome_is_unknown_is_not_repeated(cluster: Cluster) -> None:
    cluster.answers = [httpx.ReadTimeout("slow")]
    with cluster.client() as headrace, pytest.raises(errors.UnavailableError, match="does not answer"):
        headrace.admin.create_stream("s", "t")
    assert len(cluster.requests) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_creation_whose_function_ended_is_not_repeated(cluster: Cluster, status: int) -> None:
    """API Gateway answers with a document of its own if a function ends or takes too long: it may have run."""
    cluster.answers = [httpx.Response(status, json={"message": "Internal Server Error"})]
    with cluster.client() as headrace, pytest.raises(errors.UnavailableError, match=f"answered status {status}"):
        headrace.admin.create_stream("s", "t")
    assert len(cluster.requests) == 1


def test_an_error_without_a_text_has_its_name(cluster: Cluster) -> None:
    cluster.answers = [httpx.ReadError("")]
    with cluster.client() as headrace, pytest.raises(errors.UnavailableError, match=r"not answer \(ReadError\); is it"):
        headrace.admin.create_stream("s", "t")


def test_another_server_is_not_taken_for_a_controller(cluster: Cluster) -> None:
    cluster.answers = [httpx.Response(404, text="")]
    with cluster.client() as headrace, pytest.raises(errors.CorruptError, match="status 404 and no text; is that the"):
        headrace.admin.get_stream("s", "t")


def test_a_proxy_without_a_controller_deletes_nothing(cluster: Cluster) -> None:
    """Proxies answer 404 while no controller is behind them. Every caller takes a NotFoundError for a deletion."""
    cluster.answers = [httpx.Response(404, text="default backend - 404")]
    with cluster.client() as headrace, pytest.raises(errors.CorruptError, match="is that the address"):
        headrace.admin.scope_exists("s")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404),
        httpx.Response(400, text="bad"),
        httpx.Response(200, text="<html>"),
        httpx.ConnectError("refused"),
    ],
)
def test_no_message_has_the_password_of_a_url(answer: httpx.Response | Exception) -> None:
    def answer_all(_request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ask() -> errors.HeadraceError:
        url = "https://user:s3cret@controller/base"
        api = HttpApi(url, retry_s=0.0, transport=httpx.MockTransport(answer_all))
        with pytest.raises(errors.HeadraceError, match="https://controller/base") as caught:
            await api.request("GET", "/v1/scopes")
        await api.close()
        assert api.url == "https://controller/base"
        if "url" in caught.value.details:
            assert caught.value.details["url"] in (api.url, f"{api.url}/v1/scopes")
        return caught.value

    error = asyncio.run(ask())
    assert "s3cret" not in f"{error} {error.details}"


@pytest.mark.parametrize(
    "url", ["user:s3cret@c", "ftp://u:s3cret@c", "https://u:s3cret@", "https://u:s3cret@c?q=1", "https://u:s3cret/@c"]
)
def test_no_refusal_of_a_url_has_its_password(url: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match="the controller's URL") as caught:
        HttpApi(url)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_password_of_a_url_is_sent() -> None:
    sent: list[httpx.Request] = []

    async def ask() -> None:
        def answer(request: httpx.Request) -> httpx.Response:
            sent.append(request)
            return httpx.Response(204)

        api = HttpApi("https://user:s3cret@controller", transport=httpx.MockTransport(answer))
        await api.request("GET", "/v1/scopes")
        await api.close()

    asyncio.run(ask())
    assert sent[0].headers["authorization"].startswith("Basic ")


def test_a_creation_that_was_refused_is_repeated(cluster: Cluster) -> None:
    cluster.answers = [_error(503, "unavailable", "later"), httpx.Response(201, json=STREAM)]
    with cluster.client() as headrace:
        headrace.admin.create_stream("s", "t")
    assert len(cluster.requests) == 2


def test_a_creation_that_was_never_sent_is_repeated(cluster: Cluster) -> None:
    cluster.answers = [httpx.ConnectError("refused"), httpx.Response(201, json=STREAM)]
    with cluster.client() as headrace:
        headrace.admin.create_stream("s", "t")


def test_pages_are_followed(cluster: Cluster) -> None:
    pages = [
        {"scopes": [{"scopeName": "a"}], "continuationToken": "a"},
        {"scopes": [], "continuationToken": "b"},
        {"scopes": [{"scopeName": "c"}], "continuationToken": None},
    ]
    cluster.answers = [httpx.Response(200, json=page) for page in pages]
    with cluster.client() as headrace:
        assert headrace.admin.list_scopes() == ["a", "c"]


@pytest.mark.parametrize("name", ["", "a/b", "../x", "ü", "x" * 256])
def test_names_are_checked_before_anything_is_sent(cluster: Cluster, name: str) -> None:
    with cluster.client() as headrace, pytest.raises(errors.InvalidRequestError):
        headrace.admin.get_stream(name, "t")
    assert cluster.requests == []


def test_addresses_and_credentials_that_make_no_sense() -> None:
    with pytest.raises(errors.InvalidRequestError, match="http://"):
        connect("localhost:10080")
    with pytest.raises(errors.InvalidRequestError, match="aws-iam"):
        connect(auth="kerberos")  # type: ignore[arg-type]


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_signed_requests(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "eu-central-1")
    seen: list[httpx.Headers] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers)
        return httpx.Response(201, json=STREAM)

    with connect("https://api.example", auth="aws-iam", transport=httpx.MockTransport(answer)) as headrace:
        headrace.admin.create_stream("s", "t")
    assert "AKIDEXAMPLE/" in seen[0]["authorization"]
    assert "/eu-central-1/execute-api/aws4_request" in seen[0]["authorization"]
    assert "x-amz-date" in seen[0]


def test_address_without_a_listener_is_unavailable() -> None:
    with (
        connect("http://127.0.0.1:9", retry_s=0.05) as headrace,
        pytest.raises(errors.UnavailableError, match="is it up"),
    ):
        headrace.admin.list_scopes()


@pytest.mark.parametrize(
    ("given", "variable", "reached"),
    [
        (None, None, "http://127.0.0.1:10080"),
        (None, "", "http://127.0.0.1:10080"),
        (None, "http://elsewhere:1", "http://elsewhere:1"),
        ("http://named:2", "http://elsewhere:1", "http://named:2"),
    ],
)
def test_the_environment_names_the_controller(
    monkeypatch: pytest.MonkeyPatch, given: str | None, variable: str | None, reached: str
) -> None:
    if variable is None:
        monkeypatch.delenv("HEADRACE_URL", raising=False)
    else:
        monkeypatch.setenv("HEADRACE_URL", variable)
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.url.scheme}://{request.url.netloc.decode()}")
        return httpx.Response(200, json={"scopeName": "s"})

    with connect(given, transport=httpx.MockTransport(answer)) as client:
        assert client.admin.scope_exists("s")
    assert asked == [reached]


def test_a_wrong_url_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_URL", "ftp://nowhere")
    with pytest.raises(errors.InvalidRequestError, match="ftp://nowhere"):
        connect()


def test_a_caller_learns_that_an_answer_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = threading.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.to_thread(waited.wait, 60)
        return httpx.Response(200, json=STREAM)

    told: list[str] = []

    def on_waiting(url: str) -> None:
        told.append(url)
        waited.set()

    monkeypatch.setattr(http_api, "WAITING_AFTER_S", 0.01)
    url = "http://127.0.0.1:1"
    with connect(url, transport=httpx.MockTransport(answer), on_waiting=on_waiting) as headrace:
        assert headrace.admin.get_stream("s", "t").epoch == 0
        assert told == [url]
        monkeypatch.setattr(http_api, "WAITING_AFTER_S", 60.0)
        headrace.admin.get_stream("s", "t")
    assert told == [url]

"""Who may use the console, and what a browser may do with its answers."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from headrace.console.server import ConsoleServer

PATHS = ["/", "/streams", "/streams/shop/orders", "/streams/shop/orders/map", "/live/0123", "/cluster"]


@pytest.fixture
def stranger(console: ConsoleServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{console.port}", timeout=60) as opened:
        yield opened


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_shown_without_the_cookie(stranger: httpx.Client, path: str):
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert "orders" not in answer.text.replace("/streams", "")


@pytest.mark.parametrize("token", ["", "x", "ä", pytest.param("a" * 5_000, id="long")])
def test_a_wrong_token_is_refused(stranger: httpx.Client, token: str):
    answer = stranger.get("/", params={"token": token})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_the_token_becomes_a_cookie_and_leaves_the_address(console: ConsoleServer, stranger: httpx.Client):
    token = urlsplit(console.address).query
    answer = stranger.get(f"/streams?scope=shop&{token}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/streams?scope=shop")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert token.removeprefix("token=") not in cookie
    assert stranger.get("/streams").status_code == 200


def test_the_redirect_stays_on_this_host(console: ConsoleServer, stranger: httpx.Client):
    answer = stranger.get(f"http://127.0.0.1:{console.port}//evil.example/?{urlsplit(console.address).query}")
    assert answer.headers["location"] == "/evil.example/"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example:80", ""])
def test_another_host_is_refused(browser: httpx.Client, host: str):
    assert browser.get("/streams", headers={"host": host}).status_code in (400, 421)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_another_origin_is_refused(browser: httpx.Client, origin: str):
    assert browser.get("/streams", headers={"origin": origin}).status_code == 403


def test_its_own_names_and_origin_are_accepted(console: ConsoleServer, browser: httpx.Client):
    for host in (f"127.0.0.1:{console.port}", f"localhost:{console.port}"):
        headers = {"host": host, "origin": f"http://{host}"}
        assert browser.get("/streams", headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(browser: httpx.Client, method: str):
    assert browser.request(method, "/streams/shop/orders").status_code == 405


@pytest.mark.parametrize("path", ["/streams", "/streams/shop/none", "/static/console.css", "/none", "/static/../x"])
def test_each_answer_has_the_headers(browser: httpx.Client, path: str):
    headers = browser.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self'; frame-ancestors 'none'")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"


def test_no_page_needs_inline_scripts_or_styles(browser: httpx.Client):
    for path in ("/streams?scope=shop", "/streams/shop/orders", "/groups/shop/slow", "/tables/shop/prices", "/cluster"):
        text = browser.get(path).text
        assert "<style" not in text
        assert " style=" not in text
        assert " onclick=" not in text
        assert text.count("<script") == text.count('<script src="/static/')


def test_only_listed_files_are_served(browser: httpx.Client):
    assert browser.get("/static/console.js").status_code == 200
    for path in ("/static/..%2fapplication.py", "/static/%2e%2e/server.py", "/static/none.css"):
        assert browser.get(path).status_code == 404


@pytest.mark.parametrize("other", ["flag", 'prefs={"a":"b c"}', "a b=c", "b{}[x=1", "x=\xe9"])
def test_a_cookie_of_another_server_is_no_obstacle(browser: httpx.Client, other: str):
    name, value = next(iter(browser.cookies.items()))
    headers = [(b"cookie", f"{other}; {name}={value}".encode("latin-1"))]
    with httpx.Client(base_url=browser.base_url, headers=headers) as beginner:
        assert beginner.get("/static/icon.svg").status_code == 200
        assert beginner.get("/streams").status_code == 200


def test_a_wrong_cookie_is_refused(stranger: httpx.Client, browser: httpx.Client):
    name, value = next(iter(browser.cookies.items()))
    for wrong in ("", value[:-1], value + "x", "x"):
        assert stranger.get("/streams", headers={"cookie": f"{name}={wrong}"}).status_code == 401

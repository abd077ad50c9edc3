"""The server of the console: its command, a deployment that does not answer, and the start with the local stack."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from certificates_at_hand import Authority
from real_cluster import connected_to, secure_cluster, serve_functions

from functions import wiring
from headrace.adapters.system_clock import SystemClock
from headrace.adapters.tcp.listener import bind_socket
from headrace.cli import main
from headrace.cli.parameters import ScopedName
from headrace.client import ScalingPolicy, StreamCut
from headrace.client.synchronous.synchronous_trust import Trust
from headrace.console import command, server
from headrace.console.console_state import ConsoleState
from headrace.console.server import ConsoleServer
from headrace.console.store_reach import StoreReach
from headrace.model.errors import InvalidRequestError
from headrace.wire.tls import client_context

THREADS_OF_PAGES = 40
"""Starlette's default."""

FILES_ASKED = 100


class _NoScopes(BaseHTTPRequestHandler):
    """A controller without scopes."""

    def do_GET(self) -> None:
        body = json.dumps({"scopes": [], "continuationToken": None}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Says nothing."""


def test_a_page_says_that_nothing_answers_and_recovers():
    reserved = bind_socket("127.0.0.1", 0)  # it refuses connections until it listens, and no other process gets it
    console = ConsoleServer(f"http://127.0.0.1:{reserved.getsockname()[1]}")
    console.start()
    try:
        with closing(reserved), httpx.Client(follow_redirects=True, timeout=60) as browser:
            answer = browser.get(console.address)
            assert answer.status_code == 503
            assert "does not answer" in answer.text
            assert "tries again" in answer.text
            assert "data-reload" in answer.text
            controller = HTTPServer(reserved.getsockname(), _NoScopes, bind_and_activate=False)
            controller.socket.close()
            controller.socket = reserved
            controller.server_activate()
            threading.Thread(target=controller.serve_forever).start()
            try:
                answer = browser.get(str(answer.url))
                assert answer.status_code == 200
                assert "There is no scope yet" in answer.text
            finally:
                controller.shutdown()
                controller.server_close()
    finally:
        console.stop()


def test_files_are_served_while_all_pages_wait():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        console = ConsoleServer(f"http://127.0.0.1:{silent.getsockname()[1]}")
        console.start()
        base = f"http://127.0.0.1:{console.port}"
        cookies = httpx.get(console.address, timeout=60).cookies
        opened = [socket.create_connection(("127.0.0.1", console.port)) for _ in range(THREADS_OF_PAGES + 1)]
        try:
            name, value = next(iter(cookies.items()))
            request = f"GET /streams HTTP/1.1\r\nhost: 127.0.0.1:{console.port}\r\ncookie: {name}={value}\r\n\r\n"
            for connection in opened:
                connection.sendall(request.encode())
            for _ in range(FILES_ASKED):
                assert httpx.get(f"{base}/static/console.css", timeout=20).status_code == 200
        finally:
            console.stop()
            for connection in opened:
                connection.close()


def test_a_server_that_was_not_started_stops():
    console = ConsoleServer("http://127.0.0.1:1")
    console.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", console.port)).close()


def test_a_taken_port_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InvalidRequestError, match="cannot be used"):
        ConsoleServer("http://127.0.0.1:1", port=taken.getsockname()[1])


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(server, "PACKAGES", ("starlette", "no_such_package"))
    assert main(["console"]) == 2
    assert "pip install 'headrace[console]'" in capsys.readouterr().err


def test_shared_options_before_the_command_count(monkeypatch: pytest.MonkeyPatch):
    given: list[list[str]] = []

    def note(arguments: list[str]) -> int:
        given.append(list(arguments))
        return 0

    monkeypatch.setattr(command, "main", note)
    assert main(["--url", "http://one", "--auth", "aws-iam", "console", "--port", "7"]) == 0
    assert given == [["--url", "http://one", "--auth", "aws-iam", "--port", "7"]]


@pytest.mark.parametrize(
    "arguments", [["--port", "x"], ["--port", "70000"], ["--port", "\u0668\u0660"], ["--auth", "none"], ["unknown"]]
)
def test_invalid_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert command.main(arguments) == 2
    assert "Usage: headrace console" in capsys.readouterr().err


def test_the_command_line_loads_nothing_of_the_console():
    program = (
        "import sys; from headrace.cli import main; main(['--help']); "
        "assert not {'starlette', 'uvicorn', 'jinja2', 'headrace.console'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


class _SlowAdmin:
    """The administration of two streams, one of which does not answer until it may."""

    def __init__(self) -> None:
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def stream_cut(self, scope: str, stream: str) -> StreamCut:
        if stream == "slow":
            self.asked.set()
            self.may_answer.wait(30)
        return StreamCut.of(scope, stream, {0: 0})


def test_a_stream_that_does_not_answer_holds_up_no_other():
    admin: Any = _SlowAdmin()
    client: Any = SimpleNamespace(admin=admin)
    console = ConsoleState(client, "http://controller", SystemClock())
    waiting = threading.Thread(target=console.growth, args=(ScopedName("s", "slow"),))
    waiting.start()
    other = threading.Thread(target=console.growth, args=(ScopedName("s", "fast"),), daemon=True)
    try:
        assert admin.asked.wait(30)
        other.start()
        other.join(10)
        assert not other.is_alive()
    finally:
        admin.may_answer.set()
        waiting.join()
        console.close()


def test_a_closed_console_leaves_no_thread():
    admin: Any = _SlowAdmin()
    client: Any = SimpleNamespace(admin=admin)
    before = set(threading.enumerate())
    console = ConsoleState(client, "http://controller", SystemClock())
    threads = {console.reach.answer(threading.current_thread), console.reach.store_answer(threading.current_thread)}
    assert not threads & before
    console.close()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def test_neither_a_page_nor_the_command_shows_a_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupt(self: ConsoleServer, timeout_s: float) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(ConsoleServer, "wait", interrupt)
    url = "http://user:s3cret@127.0.0.1:1"
    command.main(["--url", url])
    assert "console of http://127.0.0.1:1, read only" in capsys.readouterr().out
    client: Any = SimpleNamespace(admin=_SlowAdmin())
    console = ConsoleState(client, url, SystemClock())
    assert console._templates.globals["deployment"] == "http://127.0.0.1:1"
    console.close()


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_store_with_tls_is_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_trusted: bool):
    """Readers fetch the authorities again if a certificate is refused, so that does not count as lost."""
    cluster = secure_cluster(monkeypatch, tmp_path)
    serve_functions(cluster, monkeypatch)
    try:
        with connected_to(cluster) as client:
            client.admin.create_scope("shop")
            client.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
            if not is_trusted:
                other = client_context(Authority("another one").bundle.pem)
                monkeypatch.setattr(Trust, "context", lambda _: other)
            reach = StoreReach(client, lambda: 0.0)
            assert reach.to_stream(ScopedName("shop", "orders"))
            assert cluster.store is not None
            assert cluster.store.metrics.plaintext_connections == 0
    finally:
        cluster.close()
        wiring.forget_services()


def test_the_token_is_not_in_the_output(capfd: pytest.CaptureFixture[str]):
    console = ConsoleServer("http://127.0.0.1:1")
    console.start()
    answer = httpx.get(console.address, timeout=60)
    console.stop()
    assert answer.status_code == 303
    assert console.address.partition("token=")[2] not in "".join(capfd.readouterr())


def test_readers_are_closed_at_the_end(monkeypatch: pytest.MonkeyPatch):
    closed: list[ConsoleState] = []
    monkeypatch.setattr(ConsoleState, "close", lambda console: closed.append(console))
    console = ConsoleServer("http://127.0.0.1:1")
    console.start()
    httpx.get(console.address, timeout=60)
    console.stop()
    assert len(closed) == 1

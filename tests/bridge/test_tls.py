"""The bridge with TLS: what its clients accept and refuse, a new certificate, and the end of a bridge under load."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from bridge_in_memory import Bridge
from bridge_over_tls import NAME, Balancer, Issuer, Source, TlsBridge, call, channel_to
from cryptography import x509

from headrace import topology
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.system_clock import SystemClock
from headrace.adapters.tcp import tls_contexts
from headrace.adapters.tcp.listener import bind_socket
from headrace.bridge import health
from headrace.bridge.certificates import ServerCertificate
from headrace.bridge.config import read_config
from headrace.bridge.health import CHECK, NOT_SERVING, SERVING
from headrace.codec.certificates import TrustBundle, leaf_secret_text
from headrace.codec.grpc_users import PasswordHash, User, Users
from headrace.local.resources import Resources, aws_client, create_resources
from headrace.metadata.fixed_settings import fixed_setting_body, restoring_body
from headrace.metadata.restoration import SETTING_KEY
from headrace.metadata.trust import write_trust
from headrace.model.errors import CorruptError, HeadraceError, IllegalStateError, InvalidRequestError, UnavailableError
from headrace.ports.metadata_store import Create, Record

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[..., TlsBridge]
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def start(issuer: Issuer) -> Iterator[Start]:
    started: list[TlsBridge] = []

    def begin(source: Source | None = None, **options: object) -> TlsBridge:
        bridge = TlsBridge(issuer, source or Source(issuer.issue()), **options)  # type: ignore[arg-type]
        started.append(bridge)
        return bridge

    yield begin
    for bridge in started:
        bridge.close()


def _refused(channel: grpc.Channel) -> grpc.StatusCode:
    with channel, pytest.raises(grpc.RpcError) as refused:
        call(channel)
    code: grpc.StatusCode = refused.value.code()
    return code


def test_a_client_that_trusts_the_authority_connects(start: Start):
    with start().channel() as channel:
        call(channel)


def test_a_client_that_trusts_another_authority_refuses(start: Start):
    assert _refused(start().channel(Issuer())) is UNAVAILABLE


def test_a_client_that_expects_another_name_refuses(start: Start):
    assert _refused(start().channel(name="store-0.headrace.internal")) is UNAVAILABLE


def test_a_client_refuses_a_certificate_that_has_ended(start: Start, issuer: Issuer):
    bridge, channel, ends_s = _connected_before_the_end(start, issuer)
    with channel:
        while time.time() <= ends_s + 1:
            time.sleep(0.05)
        call(channel)  # an open connection has been checked
        assert _refused(bridge.channel()) is UNAVAILABLE


def _connected_before_the_end(start: Start, issuer: Issuer) -> tuple[TlsBridge, grpc.Channel, float]:
    """A bridge, a client that has called it, and when the certificate ends: a busy machine needs a later end."""
    left_s = 2
    while True:
        secret = issuer.issue(left_s=left_s)
        ends_s = x509.load_pem_x509_certificate(secret.certificate.encode()).not_valid_after_utc.timestamp()
        try:
            bridge = start(Source(secret))
            channel = bridge.channel()
            try:
                call(channel)
            except grpc.RpcError:
                channel.close()
                raise
            return bridge, channel, ends_s
        except (CorruptError, grpc.RpcError):
            if time.time() < ends_s:
                raise  # another certificate would be refused, too
        left_s *= 2


def test_a_client_without_tls_is_refused(start: Start):
    channel = grpc.insecure_channel(f"127.0.0.1:{start().port}", (("grpc.enable_http_proxy", 0),))
    assert _refused(channel) is UNAVAILABLE


@pytest.mark.parametrize("case", ["other authority", "other name", "ended", "key of another"])
def test_a_certificate_that_clients_refuse_is_not_used(issuer: Issuer, case: str):
    secret = issuer.issue()
    source = Source(
        {
            "other authority": Issuer().issue(),
            "other name": issuer.issue("store-0.headrace.internal"),
            "ended": issuer.issue(left_s=-60),
            "key of another": type(secret)(secret.certificate, issuer.issue().key),
        }[case]
    )
    with pytest.raises(CorruptError) as refused:
        TlsBridge(issuer, source)
    assert "PRIVATE" not in refused.value.message


def test_a_bridge_without_published_authorities_does_not_start(issuer: Issuer, start: Start):
    bridge = start()
    empty = type(bridge.store)()
    certificate = ServerCertificate(Source(issuer.issue()), empty, NAME, SystemClock())
    with pytest.raises(IllegalStateError):
        certificate.refresh()


def test_a_new_certificate_drops_no_call(start: Start, issuer: Issuer):
    """The connection of before stays, with a call that is under way; a new one sees the new certificate."""
    go_on, entered = threading.Event(), threading.Event()

    async def answer() -> None:
        entered.set()
        await asyncio.to_thread(go_on.wait)

    source = Source(issuer.issue())
    bridge, other = start(source, answer=answer), Issuer()
    with bridge.channel() as old, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, old)
        entered.wait()
        bridge.trust(issuer, other)
        source.secret = other.issue()
        bridge.certificate.refresh()
        go_on.set()
        waiting.result()
        call(old)
        with bridge.channel(other) as new:
            call(new)
        assert _refused(bridge.channel(issuer)) is UNAVAILABLE
        call(old)


def test_a_certificate_that_cannot_be_read_leaves_the_old_one(start: Start, issuer: Issuer):
    source = Source(issuer.issue())
    bridge = start(source)
    for error in (UnavailableError("Secrets Manager does not answer"), None):
        source.error = error
        source.secret = issuer.issue(left_s=-60)
        with pytest.raises(HeadraceError):
            bridge.certificate.refresh()
        with bridge.channel() as channel:
            call(channel)


def test_the_certificate_is_read_again_and_again(
    issuer: Issuer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.INFO)
    source = Source(issuer.issue())
    bridge = TlsBridge(issuer, source)
    monkeypatch.setattr(tls_contexts, "RELOAD_EVERY_S", 0.01)
    monkeypatch.setattr(tls_contexts, "RETRY_S", 0.01)
    try:
        certificate = ServerCertificate(source, bridge.store, NAME, SystemClock())

        async def until(event: str) -> None:
            while not re.search(f"event={event}", caplog.text):
                await asyncio.sleep(0.01)

        async def follow() -> None:
            await certificate.start()
            source.error = UnavailableError("Secrets Manager does not answer")
            await until("certificate_not_loaded")
            source.error = RuntimeError("a defect")
            await until("certificate_not_loaded expires_s=\\d+ error='RuntimeError'")
            before = certificate._configuration
            source.error, source.secret = None, issuer.issue()
            while certificate._configuration is before:
                await asyncio.sleep(0.01)
            await certificate.stop()

        bridge.run(follow())
    finally:
        bridge.close()
    assert "PRIVATE" not in caplog.text
    assert "a defect" not in caplog.text


def test_on_its_last_day_the_certificate_is_read_each_minute(
    start: Start, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
):
    """A client that trusts the new authority only gets through long before the hour is over."""
    monkeypatch.setattr(tls_contexts, "RETRY_S", 0.01)
    source, other = Source(issuer.issue(left_s=86_000)), Issuer()
    bridge = start(source)
    bridge.trust(issuer, other)
    source.secret = other.issue()
    while True:
        with bridge.channel(other) as channel:
            try:
                call(channel)
            except grpc.RpcError:
                time.sleep(0.01)
            else:
                return


def test_a_bridge_that_ends_drops_no_call(start: Start, issuer: Issuer):
    """Eight clients call without a pause while one of two bridges behind a load balancer ends."""

    async def answer() -> None:
        await asyncio.sleep(0.01)

    first, second = (start(answer=answer, connection_age_s=1) for _ in range(2))
    over = threading.Event()
    counts = [0] * 8

    def call_until_over(client: int) -> None:
        with channel_to([balancer.port], issuer) as channel:
            while not over.is_set():
                call(channel)
                counts[client] += 1

    def all_call_again() -> None:
        """Of two more calls of a client, the second one has begun after this."""
        before = list(counts)
        while any(count < former + 2 for count, former in zip(counts, before, strict=True)):
            for ended in (each for each in running if each.done()):
                ended.result()
            time.sleep(0.01)

    # After a failure, too: the thread of a balancer that is left open keeps the process of the tests from ending.
    with closing(Balancer([first.port, second.port])) as balancer, ThreadPoolExecutor(8) as pool:
        running = [pool.submit(call_until_over, client) for client in range(8)]
        try:
            all_call_again()
            balancer.deregister(first.port)
            first.run(first.server.drain(most_s=60))
            first.stop(deadline_s=30)
            all_call_again()
        finally:
            over.set()
        for each in running:
            each.result()


def test_an_end_waits_for_the_calls_that_are_running(start: Start):
    go_on, entered = threading.Event(), threading.Event()

    async def answer() -> None:
        entered.set()
        await asyncio.to_thread(go_on.wait)

    bridge = start(answer=answer)
    with bridge.channel() as channel, ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(call, channel)
        entered.wait()
        stopping = pool.submit(bridge.stop, 30)
        with pytest.raises(TimeoutError):
            stopping.result(timeout=0.5)
        go_on.set()
        waiting.result()
        stopping.result()


def test_a_bridge_without_clients_ends_at_once(start: Start):
    bridge = start()
    bridge.run(bridge.server.drain(most_s=10_000))
    with bridge.channel() as channel:
        call(channel)
    bridge.run(bridge.server.drain(most_s=0.2))


def test_the_health_check_tells_whether_a_bridge_serves(start: Start):
    bridge = start()
    assert health.problem(bridge.health_port) == ""
    with bridge.channel() as channel:
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHECK)
        assert ask(b"") == SERVING
        bridge.server._health.stop_serving()
        assert ask(b"") == NOT_SERVING
    assert "about to end" in health.problem(bridge.health_port)
    bridge.stop()
    assert "does not answer" in health.problem(bridge.health_port)


@pytest.mark.parametrize(("value", "said"), [("x", "HEADRACE_GRPC_HEALTH_PORT is"), ("", "no port to check")])
def test_the_health_check_names_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str, said: str
):
    monkeypatch.setenv("HEADRACE_GRPC_HEALTH_PORT", value)
    assert health.main() == 1
    assert said in capsys.readouterr().err


NEEDED = {
    f"HEADRACE_{name}": "x"
    for name in (
        "METADATA_TABLE",
        "REQUESTS_QUEUE_URL",
        "TABLES_QUEUE_URL",
        "COMMITS_QUEUE_URL",
        "ABORTS_QUEUE_URL",
        "GRPC_USERS_SECRET",
        "TOKEN_KEYS_SECRET",
    )
} | {"HEADRACE_TOKENS": "required", "HEADRACE_GRPC_LISTEN_HOST": "0.0.0.0"}
TLS = {"HEADRACE_TLS": "required", "HEADRACE_TLS_SECRET": "s", "HEADRACE_TLS_NAME": NAME}


def test_with_tls_users_may_come_over_the_network():
    assert read_config(NEEDED | TLS).tls.name == NAME
    with pytest.raises(InvalidRequestError, match="HEADRACE_TLS=required"):
        read_config(NEEDED)


@pytest.fixture
def deployed() -> Iterator[Resources]:
    """The table and the queues of a deployment, in an emulator that ends with the test."""
    command = [sys.executable, "-m", "headrace.local.aws_emulator", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as emulator:
        assert emulator.stdout is not None
        try:
            yield create_resources(emulator.stdout.readline().strip().removeprefix("ready endpoint="))
        finally:
            emulator.terminate()


@pytest.fixture
def health_port() -> Iterator[int]:
    """A port that no other process gets before the bridge listens there."""
    with closing(bind_socket("127.0.0.1", 0)) as reserved:
        yield reserved.getsockname()[1]


def test_the_process_serves_with_its_certificate(issuer: Issuer, deployed: Resources, health_port: int, tmp_path: Path):
    """Over the network with TLS, and to the health check of its container without."""
    store = DynamoMetadataStore(deployed.table, aws_client("dynamodb", deployed.endpoint))
    store.write(write_trust(TrustBundle((issuer.pem,)), None))
    file = tmp_path / "certificate.json"
    file.write_text(leaf_secret_text(issuer.issue()))
    file.chmod(0o600)
    environment = {
        **os.environ,
        **deployed.environment(),
        "HEADRACE_GRPC_LISTEN_HOST": "0.0.0.0",
        "HEADRACE_GRPC_LISTEN_PORT": "0",
        "HEADRACE_GRPC_HEALTH_PORT": str(health_port),
        "HEADRACE_TLS": "required",
        "HEADRACE_TLS_FILE": str(file),
        "HEADRACE_TLS_NAME": NAME,
    }
    check = [sys.executable, "-m", "headrace.bridge.health"]
    command = [sys.executable, "-m", "headrace.bridge"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split()[-1].removeprefix("port="))
            with channel_to([port], issuer) as channel:
                call(channel)
            assert subprocess.run(check, cwd=ROOT, env=environment, check=False).returncode == 0
        finally:
            process.terminate()
        assert process.wait() == 0
    assert subprocess.run(check, cwd=ROOT, env=environment, capture_output=True, check=False).returncode == 1
    file.write_text(leaf_secret_text(Issuer().issue()))
    refused = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "not one that clients of controller.headrace.internal accept" in refused.stderr
    assert "PRIVATE" not in refused.stderr + refused.stdout


def test_the_health_check_needs_no_user(bridge: Bridge):
    """A balancer has no password, and its checks are not in the audit log."""
    users = Users({"ann": User("ann", PasswordHash.of(b"correct horse", b"0123456789abcdef"))})
    secured = Bridge(bridge.world, lambda: users)
    try:
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = secured.channel.unary_unary(CHECK)
        assert ask(b"") == SERVING
        assert secured.audit == []
        assert secured.refused("listScopes", b"") is grpc.StatusCode.UNAUTHENTICATED
    finally:
        secured.close()


def test_the_process_does_not_start_during_a_restore(deployed: Resources):
    store = DynamoMetadataStore(deployed.table, aws_client("dynamodb", deployed.endpoint))
    setting = Record(SETTING_KEY, 0, fixed_setting_body(topology.CONTAINER_COUNT))
    store.write(Create(SETTING_KEY, restoring_body(setting, 1)))
    environment = {**os.environ, **deployed.environment(), "HEADRACE_GRPC_LISTEN_PORT": "0"}
    command = [sys.executable, "-m", "headrace.bridge"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "a restore of this deployment is not finished" in ended.stderr

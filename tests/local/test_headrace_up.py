"""`headrace up` as a user runs it: a process, real segment stores, real HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.bridge import controller_pb2 as pb
from headrace.bridge.server import SERVICE
from headrace.client import connect
from headrace.local import command
from headrace.local.resources import aws_client
from headrace.local.stack_processes import STARTS_MAX
from headrace.model.tls_modes import TlsMode
from headrace.topology import ROUTES, TICKS_QUEUE
from headrace.wire.connections.blocking import BlockingConnection

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 120
"""Only keeps a failing test from hanging."""


class Up:
    """A running `headrace up`."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.state_file = directory / "state" / "local-stack.json"
        self._said = directory / "said"
        command = [
            *(sys.executable, "-m", "headrace.local", "--http-port", "0", "--grpc-port", "off"),
            *("--state-file", str(self.state_file), *arguments),
        ]
        with self._said.open("w") as said:  # a pipe that nobody reads would fill, and then hold up the stack's end
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=said, text=True)
        self.lines: list[str] = []

    def await_line(self, wanted: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if self.lines[-1] == wanted:
                return
        raise AssertionError(f"ended without {wanted!r}: {self.lines} {self.end()}")

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.state_file.read_text())
        return state

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.state["endpoints"]["http"] + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=HANG_S) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def until(self, path: str, wanted: Any) -> Any:
        """Asks until `wanted(status, body)` holds."""
        while True:
            status, body = self.ask("GET", path)
            if wanted(status, body):
                return body
            assert self.process.poll() is None

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and what was said on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=HANG_S)
        self.lines += out.split("\n")
        return self.process.returncode, self._said.read_text()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def starts() -> Iterator[list[Up]]:
    """Whatever a test started is gone after it."""
    started: list[Up] = []
    yield started
    for up in started:
        if up.process.poll() is None:
            up.process.kill()
            up.process.communicate()


def children(up: Up) -> dict[int, int]:
    """Process file descriptors of everything that belongs to the stack, by pid."""
    state = up.state
    pids = [state["awsPid"], *(store["pid"] for store in state["segmentStores"])]
    return {pid: os.pidfd_open(pid) for pid in pids}


def await_end(pidfds: dict[int, int]) -> None:
    for pid, pidfd in pidfds.items():
        ended, _, _ = select.select([pidfd], [], [], HANG_S)
        os.close(pidfd)
        assert ended, f"process {pid} is still there"


def _the_console_is_served(up: Up) -> None:
    (address,) = (line.split()[1] for line in up.lines if line.startswith("console "))
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(address, timeout=HANG_S) as page:
        assert "<h1>Streams</h1>" in page.read().decode()


EVENTS = [f"event-{number:03d}" for number in range(200)]
FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}


def test_the_main_path(directory: Path, starts: list[Up]):
    """Starts, creates a stream, survives a kill of a store, stops clean, and continues with the data it had."""
    arguments = ("--data-dir", str(directory / "data"), "--segment-stores", "2")
    up = Up(directory, *arguments)
    starts.append(up)
    up.await_line("ready")
    expected = {
        "http",
        "console",
        "aws",
        "store-0",
        "store-1",
        "tokens",
        "tls",
        "audit",
        "data",
        "state",
        "next",
        "ready",
        "note:",
    }
    assert {line.split()[0] for line in up.lines} == expected
    _every_endpoint_is_on_loopback(up)
    _the_console_is_served(up)
    _every_declared_route_is_served(up)

    assert up.ask("POST", "/v1/scopes", {"scopeName": "s"})[0] == 201
    assert up.ask("POST", "/v1/scopes/s/streams", {"streamName": "t", "scalingPolicy": FIXED})[0] == 201
    up.until("/v1/scopes/s/streams/t", lambda status, body: body["state"] == "ACTIVE")
    assert up.ask("GET", "/v1/scopes/s/streams/t/stream-cut")[1]["cut"] == {"0": 0, "1": 0}
    _bad_input_is_answered(up)
    _changes_were_noted(up)
    _ticks_were_scheduled(up)
    with connect(up.state["endpoints"]["http"]) as headrace, headrace.writer("s", "t") as writer:
        writer.write_batch([text.encode() for text in EVENTS], EVENTS)
        writer.flush()
    tail = up.ask("GET", "/v1/scopes/s/streams/t/stream-cut")[1]["cut"]
    _a_killed_store_comes_back(up, tail)

    pidfds = children(up)
    code, said = up.end()
    ended, again_up, stopping = (line for line in said.splitlines() if line.startswith("headrace up: "))
    logged = [json.loads(line) for line in said.splitlines() if not line.startswith("headrace up: ")]
    assert {line["message"] for line in logged} <= {"stores lost: store-0"}, "on a busy machine it is away for long"
    assert (code, stopping) == (0, "headrace up: stopping")
    assert ended.startswith("headrace up: segment store store-0 was ended by signal 9: it is started again. Its log: ")
    assert again_up.startswith("headrace up: segment store store-0 runs again at 127.0.0.1:")
    await_end(pidfds)
    assert not up.state_file.exists()

    again = Up(directory, *arguments)
    starts.append(again)
    again.await_line("ready")
    status, stream = again.ask("GET", "/v1/scopes/s/streams/t")
    assert (status, stream.get("state")) == (200, "ACTIVE"), stream
    assert again.ask("GET", "/v1/scopes/s/streams/t/stream-cut")[1]["cut"] == tail
    with connect(again.state["endpoints"]["http"]) as headrace:
        end = headrace.admin.stream_cut("s", "t", at="latest")
        with headrace.reader("s", "t", start="earliest", end=end) as reader:
            assert sorted(bytes(read.event).decode() for read in reader) == sorted(EVENTS)
    pidfds = children(again)
    assert again.end(signal.SIGINT) == (0, "headrace up: stopping\n")
    await_end(pidfds)


def _every_endpoint_is_on_loopback(up: Up) -> None:
    state = up.state
    assert all(re.match(r"http://127\.0\.0\.1:\d+$", url) for url in state["endpoints"].values())
    assert all(store["host"] == "127.0.0.1" for store in state["segmentStores"])
    for store in state["segmentStores"]:
        BlockingConnection(store["host"], store["port"]).close()
    claimed = sorted(container for store in state["segmentStores"] for container in store["containers"])
    assert claimed == list(range(8))


def _every_declared_route_is_served(up: Up) -> None:
    """What no function serves is answered by the gateway with "message", what one serves never is."""
    for route in ROUTES:
        path = route.path.replace("{segment}", "0").replace("{epoch}", "0").replace("{", "no-").replace("}", "")
        status, body = up.ask(route.method, path, {} if route.method in ("POST", "PUT") else None)
        assert status < 500 or body["error"]["code"] == "unavailable"
        assert body is None or "message" not in body


def _changes_were_noted(up: Up) -> None:
    (file,) = [line.split()[1] for line in up.lines if line.startswith("audit ")]
    lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
    created = [line for line in lines if line["action"] == "stream.create" and line["outcome"] == "done"]
    assert [(line["resource"], line["principal"], line["sourceIp"]) for line in created] == [
        ("s/t", "local", "127.0.0.1")
    ]
    assert "path_not_canonical" in {line.get("code") for line in lines}
    assert Path(file).parent.parent == Path(up.state["dataDir"])


def _bad_input_is_answered(up: Up) -> None:
    stream = "/v1/scopes/s/streams/t"
    holes = {"sealedSegments": [0], "newRanges": [{"low": 0.0, "high": 0.2}, {"low": 0.3, "high": 0.5}]}
    wrong = [
        (up.ask("DELETE", stream), 412, "stream_not_sealed"),
        (up.ask("POST", f"{stream}/scale", holes), 400, "invalid_key_ranges"),
        (up.ask("POST", "/v1/scopes", {"scopeName": "a/b"}), 400, "invalid_name"),
        (up.ask("GET", "/v1/scopes/a%2Fb"), 400, "path_not_canonical"),
        (up.ask("POST", "/v1/scopes", {"scopeName": "x" * 600_000}), 413, "body_too_large"),
    ]
    for (status, body), wanted_status, wanted_code in wrong:
        assert (status, body["error"]["code"]) == (wanted_status, wanted_code)
    assert up.ask("GET", "/v2/nowhere") == (404, {"message": "Not Found"})
    assert up.ask("GET", stream)[1]["state"] == "ACTIVE"


def _ticks_were_scheduled(up: Up) -> None:
    """None is delayed at the end of a minute, before the schedule sends those of the next one."""
    names = ["ApproximateNumberOfMessagesDelayed"]
    sqs = aws_client("sqs", up.state["endpoints"]["aws"])
    url = up.state["queues"][TICKS_QUEUE.name]
    while not int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"][names[0]]):
        assert up.process.poll() is None


def _a_killed_store_comes_back(up: Up, tail: dict[str, int]) -> None:
    before = up.state["segmentStores"][0]
    os.kill(before["pid"], signal.SIGKILL)
    while (after := up.state["segmentStores"][0])["pid"] in (before["pid"], None):
        assert up.process.poll() is None
    assert after["restarts"] == 1
    assert after["port"] == before["port"]
    assert up.ask("GET", "/v1/scopes/s/streams/t/stream-cut")[1]["cut"] == tail
    endpoint = up.ask("GET", "/v1/scopes/s/streams/t/segments/0/endpoint")[1]
    assert endpoint["port"] in {store["port"] for store in up.state["segmentStores"]}


def test_a_stack_that_is_killed_takes_everything_with_it(directory: Path, starts: list[Up]):
    up = Up(directory, "--data-dir", str(directory / "data"))
    starts.append(up)
    up.await_line("ready")
    pidfds = children(up)
    assert up.end(signal.SIGKILL)[0] == -signal.SIGKILL
    await_end(pidfds)
    again = Up(directory, "--data-dir", str(directory / "data"))
    starts.append(again)
    again.await_line("ready")
    assert any(line.startswith("note:") and "world-0001" in line for line in again.lines)
    assert again.ask("GET", "/v1/scopes")[1]["scopes"] == []
    _a_stack_whose_aws_dies_says_so_and_ends(again)


def _a_stack_whose_aws_dies_says_so_and_ends(up: Up) -> None:
    pidfds = children(up)
    assert set(pidfds) <= holders(Path(up.state["dataDir"]))
    os.kill(up.state["awsPid"], signal.SIGKILL)
    up.process.wait(HANG_S)
    code, said = up.end()
    assert code == 1
    assert "headrace up: the AWS emulator ended with code -9" in said
    await_end(pidfds)


def test_a_signal_during_the_start_leaves_nothing_behind(directory: Path, starts: list[Up]):
    up = Up(directory, "--data-dir", str(directory / "data"))
    starts.append(up)
    while not (directory / "data" / "world-0001" / "logs" / "aws.log").exists():
        assert up.process.poll() is None
    code, _said = up.end()
    assert code == 0
    assert not up.state_file.exists()
    # A child that was being started at that moment ends when it finds its parent gone.
    left: dict[int, int] = {}
    for pid in holders(directory):
        with contextlib.suppress(ProcessLookupError):
            left[pid] = os.pidfd_open(pid)
    await_end(left)


def holders(directory: Path) -> set[int]:
    """Processes that have a file below the directory open: every child has its log there."""
    found: set[int] = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(str(directory)):
                found.add(int(link.parts[2]))
    return found


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def refused(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.local", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        command.parse_options(["--help"], "headrace up")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for example in command.EXAMPLES:
        assert f"\n    {example}\n" in shown
        command.parse_options(example.split()[2:], "headrace up")
    assert max(map(len, shown.splitlines())) <= 80
    for code, meaning in command.EXIT_CODES.items():
        assert f" {code} {meaning} " in " ".join([*shown.split(), ""])


def test_options_of_the_command_line():
    plain = command.parse_options([], "headrace up")
    assert (plain.http_port, plain.grpc_port, plain.console_port, plain.restart) == (10080, 9090, 0, True)
    assert (plain.data_dir, plain.segment_stores, plain.tokens, plain.tls) == (None, None, False, TlsMode.OFF)
    options = "--http-port 0 --grpc-port off --console-port off --segment-stores 3 --secure --no-restart --data-dir d"
    chosen = command.parse_options(options.split(), "headrace up")
    assert (chosen.http_port, chosen.grpc_port, chosen.console_port, chosen.restart) == (0, None, None, False)
    assert (chosen.data_dir, chosen.segment_stores, chosen.tokens, chosen.tls) == (Path("d"), 3, True, TlsMode.REQUIRED)


def test_a_taken_port_is_one_clear_line(taken_port: int, directory: Path):
    code, said = refused("--http-port", str(taken_port), "--grpc-port", "off", "--data-dir", str(directory / "data"))
    assert code == 2
    assert said == (
        f"headrace up: cannot listen on 127.0.0.1:{taken_port}: Address already in use; "
        "choose another port with --http-port, or stop the program that has this one\n"
    )
    assert not (directory / "data").exists()


def test_a_taken_grpc_port_is_one_clear_line(taken_port: int, directory: Path):
    code, said = refused("--http-port", "0", "--grpc-port", str(taken_port), "--data-dir", str(directory / "data"))
    assert code == 2
    assert said == (
        f"headrace up: cannot serve Pravega's clients on 127.0.0.1:{taken_port}: Address already in use; "
        "choose another port with --grpc-port, or --grpc-port off\n"
    )
    assert not (directory / "data").exists()


def test_a_taken_console_port_is_one_clear_line(taken_port: int, directory: Path):
    ports = ("--http-port", "0", "--grpc-port", "off", "--console-port", str(taken_port))
    code, said = refused(*ports, "--data-dir", str(directory / "data"))
    assert code == 2
    assert said == (
        f"headrace up: cannot serve the console: port {taken_port} of 127.0.0.1 cannot be used: "
        "Address already in use; "
        "choose another port with --console-port, or --console-port off\n"
    )
    assert not (directory / "data").exists()


@pytest.mark.nightly
def test_a_stack_whose_bridge_dies_says_so_and_ends(directory: Path, starts: list[Up]):
    up = Up(directory, "--grpc-port", "0")
    starts.append(up)
    up.await_line("ready")
    address = up.state["endpoints"]["grpc"].removeprefix("tcp://")
    assert address.startswith("127.0.0.1:")
    with grpc.insecure_channel(address) as channel:
        call = f"/{SERVICE.full_name}/createScope"
        channel.unary_unary(call, request_serializer=pb.ScopeInfo.SerializeToString)(pb.ScopeInfo(scope="g"))
    (file,) = [line.split()[1] for line in up.lines if line.startswith("audit ")]
    (line,) = map(json.loads, Path(file).read_text().splitlines())
    assert (line["action"], line["resource"], line["principal"]) == ("scope.create", "g", "grpc")
    pidfds = children(up)
    os.kill(up.state["grpcPid"], signal.SIGKILL)
    up.process.wait(HANG_S)
    code, said = up.end()
    assert code == 1
    assert "headrace up: the gRPC bridge ended with code -9" in said
    await_end(pidfds)


@pytest.mark.nightly
def test_a_store_that_does_not_stay_up_ends_the_stack(directory: Path, starts: list[Up]):
    """The journal of one of two stores is broken while it is down, so that each start ends at once."""
    up = Up(directory, "--segment-stores", "2", "--data-dir", str(directory / "data"))
    starts.append(up)
    up.await_line("ready")
    pidfds = children(up)
    (journal,) = directory.glob("data/world-*/store-1/journal")
    journal.rename(journal.with_name("moved"))
    journal.write_text("no directory")
    os.kill(up.state["segmentStores"][1]["pid"], signal.SIGKILL)
    up.process.wait(HANG_S)
    code, said = up.end()
    assert code == 1
    assert re.search(r"headrace up: segment store store-1 does not come up again: .* ended with code [1-9]", said)
    assert f"In {STARTS_MAX} starts it has never served for 10 s, so it is not started again. Its log: /" in said
    await_end(pidfds)


def test_a_full_output_is_one_line_and_stops_the_stack(directory: Path):
    program = "import sys; from headrace.cli import main; sys.exit(main())"
    up = [sys.executable, "-c", program, "up", "--http-port", "0", "--grpc-port", "off"]
    up += ["--data-dir", str(directory / "data"), "--state-file", str(directory / "state.json")]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(up, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "headrace up: cannot write the output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, said)


def test_unwritable_data_directory_is_one_clear_error_line(directory: Path):
    (directory / "file").touch()
    code, said = refused("--http-port", "0", "--grpc-port", "off", "--data-dir", str(directory / "file" / "data"))
    assert code == 1
    assert re.fullmatch(r"headrace up: cannot write to data directory .*: Not a directory\n", said)


def test_a_file_in_place_of_a_data_directory_is_refused(directory: Path):
    (directory / "file").touch()
    code, said = refused("--http-port", "0", "--grpc-port", "off", "--data-dir", str(directory / "file"))
    assert (code, said) == (2, f"headrace up: data directory {directory / 'file'} is a file\n")


@pytest.mark.parametrize("port", ["70000", "x", "-1"])
def test_a_refused_port_says_what_ports_there_are(port: str):
    _, said = refused(f"--http-port={port}")
    assert f"'{port}' is not a port: expected 0 to 65535" in said


@pytest.mark.parametrize(
    "arguments",
    [("--http-port", "70000"), ("--http-port", "x"), ("--grpc-port", "on"), ("--segment-stores", "0"), ("--unknown",)],
)
def test_a_command_line_that_makes_no_sense_is_refused(arguments: tuple[str, ...]):
    code, said = refused(*arguments)
    assert code == 2
    assert said.startswith("Usage:")

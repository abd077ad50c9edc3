"""Clients with the network `external` use the external ports of segment stores only, and verify the names there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.application import run
from headrace.client import InvalidRequestError, ScalingPolicy, connect
from headrace.local.running import running_stack

SCOPE, STREAM = "shop", "orders"
PROGRAM = """
import json, os, sys
sys.modules["uvloop"] = None  # its connections raise no audit events
connected = set()
sys.addaudithook(lambda name, values: connected.add(values[1]) if name == "socket.connect" else None)
from headrace.client import ReaderGroupConfiguration, connect
from headrace.model.reader_groups import GroupStream
with connect() as headrace:
    with headrace.writer("shop/orders") as writer:
        for number in range(100):
            writer.write(b"%d" % number, routing_key=str(number))
    with headrace.transactional_writer("shop/orders") as writer:
        transaction = writer.begin()
        transaction.write(b"100", routing_key="100")
        transaction.commit(wait=True)
    with headrace.reader("shop/orders", end=headrace.admin.stream_cut("shop", "orders")) as reader:
        read = sorted(int(event.event) for event in reader)
    headrace.admin.reader_groups.create("shop", "billing", ReaderGroupConfiguration((GroupStream("shop", "orders"),)))
    with headrace.reader_group("shop", "billing") as group, group.reader("first") as reader:
        in_group = reader.read_batch(timeout_s=60) is not None
    names = [headrace.admin.endpoint("shop", "orders", number).tls_name for number in range(4)]
print(json.dumps({"read": read, "inGroup": in_group, "names": names, "ports": sorted({each[1] for each in connected})}))
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with running_stack(tmp_path_factory.mktemp("stack"), segment_stores=2, secure=True) as state:
        with connect(state["endpoints"]["http"]) as headrace:
            headrace.admin.create_scope(SCOPE)
            headrace.admin.create_stream(SCOPE, STREAM, scaling=ScalingPolicy.fixed(4))
        yield state


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_all_connections_are_external(stack: dict[str, Any]):
    url = stack["endpoints"]["http"]
    environment = os.environ | {"HEADRACE_URL": url, "HEADRACE_NETWORK": "external"}
    ended = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["read"] == list(range(101))
    assert document["inGroup"]
    assert set(document["names"]) <= {f"store-{index}.external.headrace.internal" for index in range(2)}
    # The system chose all ports: a store's own is not among them.
    assert set(document["ports"]) <= {port_of(url), *stack["externalPorts"]}
    assert set(document["ports"]) & set(stack["externalPorts"])


def test_the_command_line_has_the_option(stack: dict[str, Any], capsys: pytest.CaptureFixture[str]):
    url = stack["endpoints"]["http"]
    asked = ["--json", "segment", "endpoint", f"{SCOPE}/{STREAM}", "0@0", "--url", url, "--network", "external"]
    assert run(asked) == 0
    assert json.loads(capsys.readouterr().out)["port"] in stack["externalPorts"]


def test_a_plain_stack_has_no_external_network(tmp_path: Path):
    with (
        running_stack(tmp_path, segment_stores=1) as state,
        connect(state["endpoints"]["http"], network="external") as headrace,
    ):
        headrace.admin.create_scope(SCOPE)
        headrace.admin.create_stream(SCOPE, STREAM, scaling=ScalingPolicy.fixed(1))
        with pytest.raises(InvalidRequestError) as refused:
            headrace.admin.endpoint(SCOPE, STREAM, 0)
        assert refused.value.specific_code == "no_external_network"

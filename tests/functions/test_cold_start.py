"""What a function does before its first call, counted in a process of its own: clients, sessions, modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cold_start import REQUESTS, first_answer
from headrace import topology

ROOT = Path(__file__).resolve().parents[2]

START = """
import importlib, json, sys
import botocore.session
made, sessions = [], set()
create_client = botocore.session.Session.create_client
def counted(session, name, *arguments, **more):
    made.append(name)
    sessions.add(id(session))
    return create_client(session, name, *arguments, **more)
botocore.session.Session.create_client = counted
importlib.import_module(sys.argv[1])
before = list(made)
from functions import wiring
for build in sys.argv[2:]:
    getattr(wiring, build)()
print(json.dumps({"before": before, "after": made, "sessions": len(sessions), "modules": sorted(sys.modules)}))
"""
ENVIRONMENT = {
    "HEADRACE_METADATA_TABLE": "t",
    "HEADRACE_CHUNK_BUCKET": "b",
    **{f"HEADRACE_{name}_QUEUE_URL": "https://q/1" for name in ("REQUESTS", "TABLES", "COMMITS", "ABORTS", "TICKS")},
}

UNUSED_AT_FIRST = frozenset(
    {"key_value_tables", "reader_groups", "retention", "subscribers", "transactions", "watermarks"}
)
"""Models of which no class is needed to answer a first question about scopes or streams. Each class of a model costs a
cold start about 0.7 ms of CPU: all of them were a sixth of it."""


def _start(name: str, *builds: str, **variables: str) -> dict[str, Any]:
    declared = topology.function(name)
    environment = {**os.environ, **ENVIRONMENT, "POWERTOOLS_SERVICE_NAME": name, **variables}
    module = declared.handler.rpartition(".")[0]
    finished = subprocess.run(
        [sys.executable, "-c", START, module, *builds],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    document: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return document


@pytest.mark.parametrize(
    ("name", "builds", "clients"),
    [
        ("scopes", ("scope_service", "scope_deletion_service"), ["dynamodb", "sqs"]),
        ("segments", ("segment_service",), ["dynamodb"]),
        ("history", ("history_service",), ["dynamodb", "s3"]),
        ("plans", ("chunk_links", "segment_stores"), ["dynamodb", "s3"]),
        ("stream-requests", ("request_processor",), ["dynamodb", "sqs"]),
        ("schedule-ticks", ("sqs_client",), ["sqs"]),
    ],
)
def test_clients_are_built_before_the_first_call(name: str, builds: tuple[str, ...], clients: list[str]):
    """After the import Lambda gives a function a third of a processor: the first call builds none."""
    started = _start(name, *builds, AWS_LAMBDA_FUNCTION_NAME=f"headrace-{name}")
    assert sorted(started["before"]) == clients
    assert started["after"] == started["before"]
    assert started["sessions"] == 1, "each session reads botocore's data again"
    loaded = {module.partition(".")[0] for module in started["modules"]}
    assert not loaded & {"boto3", "s3transfer", "httpx", "aws_xray_sdk", "moto", "pydantic"}
    assert ("headrace.adapters.tcp.segment_stores" in started["modules"]) == topology.function(
        name
    ).reaches_segment_stores


def test_elsewhere_importing_a_handler_builds_nothing():
    """Tests and the local stack import handlers before there is anything to connect to."""
    assert _start("scopes")["before"] == []


@pytest.mark.parametrize(
    ("name", "path", "status", "unused"),
    [
        ("scopes", "/v1/scopes", 200, UNUSED_AT_FIRST | {"stream_configuration", "streams", "truncation"}),
        ("streams", "/v1/scopes/s/streams", 404, UNUSED_AT_FIRST),
    ],
)
def test_a_first_request_imports_no_other_models(name: str, path: str, status: int, unused: frozenset[str]):
    answered = first_answer(name, path, [sys.executable], ROOT)
    assert answered["status"] == status
    models = {module.removeprefix("headrace.model.") for module in answered["modules"] if "headrace.model." in module}
    assert {"names", "requests"} <= models
    assert not models & unused


UNUSED_WITHOUT_STORES = (
    "headrace.adapters.tcp",
    "headrace.adapters.token_keys",
    "headrace.codec.delegation_tokens",
    "headrace.wire",
)
UNUSED_BY_FUNCTIONS: tuple[str, ...] = (
    "boto3",
    "grpc",
    "headrace.client",
    "headrace.codec.places",
    "httpx",
    "jinja2",
    "numpy",
    "pyarrow",
    "pydantic",
    "s3transfer",
)
"""Modules that no first answer needs, and that are large or import much."""


@pytest.mark.parametrize(("name", "path"), REQUESTS.items())
def test_a_first_answer_imports_nothing_it_does_not_use(name: str, path: str):
    unused = UNUSED_BY_FUNCTIONS
    if not topology.function(name).reaches_segment_stores:
        unused += UNUSED_WITHOUT_STORES
    found = first_answer(name, path, [sys.executable], ROOT)["modules"]
    assert not [module for module in found if any(f"{module}.".startswith(f"{each}.") for each in unused)]


DATACLASSES = """
import dataclasses, importlib, sys
importlib.import_module(sys.argv[1])
for name, module in sorted(sys.modules.items()):
    if name in sys.argv[2:] or name.rpartition(".")[0] in sys.argv[2:]:
        print(name)
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == name and dataclasses.is_dataclass(value):
                print("dataclass", name, value.__name__)
"""
DECLARATIONS = ("functions.operations", "headrace.ports.metadata_store", "headrace.topology", "headrace.wire")
"""Modules with many declarations that functions import. A start takes 0.75 ms of CPU for each frozen dataclass with
slots, because Python compiles its methods, and 0.03 ms for a struct of msgspec."""


def test_declarations_of_every_start_are_structs():
    environment = {**os.environ, **ENVIRONMENT, "POWERTOOLS_SERVICE_NAME": "segments"}
    environment["AWS_LAMBDA_FUNCTION_NAME"] = "headrace-segments"
    module = topology.function("segments").handler.rpartition(".")[0]
    command = [sys.executable, "-c", DATACLASSES, module, *DECLARATIONS]
    lines = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert {*DECLARATIONS, "headrace.topology.kinds", "headrace.wire.segments"} <= {*lines.splitlines()}
    found = [line for line in lines.splitlines() if line.startswith("dataclass")]
    assert found == ["dataclass headrace.wire.tls StoreTls"], "its field with the context must not be shown"


@pytest.mark.parametrize(
    ("name", "clients"),
    [("replication-gate", ["dynamodb"]), ("token-keys", []), ("delegation-tokens", []), ("token-key-gate", [])],
)
def test_other_functions_start_on_lambda_too(name: str, clients: list[str]):
    assert _start(name, AWS_LAMBDA_FUNCTION_NAME=f"headrace-{name}")["before"] == clients


TOKENS_REQUIRED = {"HEADRACE_TOKENS": "required", "HEADRACE_TOKEN_KEYS_SECRET": "headrace-token-keys"}


@pytest.mark.parametrize(
    ("name", "clients"), [("delegation-tokens", []), ("segments", ["dynamodb"]), ("ticks", ["dynamodb", "sqs"])]
)
def test_functions_start_with_tokens(name: str, clients: list[str]):
    """The secret is read by the first call that needs a token."""
    started = _start(name, AWS_LAMBDA_FUNCTION_NAME=f"headrace-{name}", **TOKENS_REQUIRED)
    assert sorted(started["before"]) == clients
    assert "headrace.adapters.token_keys" in started["modules"]


def test_tokens_without_keys_fail_the_start():
    environment = {"AWS_LAMBDA_FUNCTION_NAME": "headrace-delegation-tokens", "HEADRACE_TOKENS": "required"}
    with pytest.raises(AssertionError, match="set either HEADRACE_TOKEN_KEYS_FILE or HEADRACE_TOKEN_KEYS_SECRET"):
        _start("delegation-tokens", **environment)

"""Synthesizes the app once per session and hands the templates out as plain JSON."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cdk_assembly import PROJECT_FILES, PROJECT_FOLDERS, ROOT, Assembly, plain, run, synthesize, walk_imports


@pytest.fixture(scope="session")
def imported_from_outside() -> Callable[[Path, str], set[str]]:
    """`walk_imports`, for tests that look into an artefact."""
    return walk_imports


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the app is made of, so that all that is compared in a session is the same."""
    copy = tmp_path_factory.mktemp("project")
    for name in PROJECT_FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in PROJECT_FILES:
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    return copy


def _unchanged(made: Assembly) -> Iterator[Assembly]:
    """For all tests of a session: one that changes it would let another fail, depending on their order."""
    yield made
    assert Assembly(made.directory).templates == made.templates, "a test has changed the templates"


@pytest.fixture(scope="session")
def default_assembly(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assembly]:
    """The app as deployed without any choice."""
    yield from _unchanged(synthesize(project, tmp_path_factory.mktemp("cdk.default.out")))


@pytest.fixture(scope="session")
def assembly(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assembly]:
    """The app without TLS and tokens, and with no other choice. `make check` lets cdk-nag judge the default."""
    yield from _unchanged(synthesize(project, tmp_path_factory.mktemp("cdk.out"), tls="off", tokens="off"))


@pytest.fixture(scope="session")
def smallest_assembly(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assembly]:
    """The app with every choice made the other way; cdk-nag has judged it, or the synth would have failed."""
    directory = tmp_path_factory.mktemp("cdk.smallest.out")
    choices = {"zones": "us-east-1a,us-east-1d", "spark_job": "false", "keep_data": "false"}
    more_choices = {"alarm_email": "a@b.example", "account_concurrency": "10", "metrics_from": "10.1.2.0/24"}
    last_choices = {"tokens": "required", "tls": "required", "grpc_bridge": "true", "canary": "off", "nag": "true"}
    yield from _unchanged(synthesize(project, directory, **choices, **more_choices, **last_choices))


@pytest.fixture(scope="session")
def external_assembly(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assembly]:
    """The app for clients outside the network; cdk-nag has judged it, or the synth would have failed."""
    choices = {"zones": "us-east-1a,us-east-1b,us-east-1c", "spark_job": "false", "grpc_bridge": "true", "nag": "true"}
    outside = {"external_domain": "streams.example.com", "external_zone_id": "Z0123456789ABCDEFGHIJ"}
    open_to = {"external_from": "203.0.113.0/24,0.0.0.0/0", "restore_role": "arn:aws:iam::111122223333:role/restore"}
    secured = {"tokens": "required", "tls": "required"}
    directory = tmp_path_factory.mktemp("cdk.external.out")
    yield from _unchanged(synthesize(project, directory, **choices, **outside, **open_to, **secured))


@pytest.fixture(scope="session")
def run_python(project: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program text that uses the CDK in a process of its own."""
    return lambda program, **variables: run(project, "-c", program, **variables)


@pytest.fixture(scope="session")
def as_text() -> Callable[[object], str]:
    """`plain`, for tests that compare CloudFormation values."""
    return plain

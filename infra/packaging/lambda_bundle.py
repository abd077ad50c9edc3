"""The one bundle that all Lambda functions share: the library, the handlers and their locked dependencies.

Built by uv on the machine that synthesizes, for the machine that runs it: wheels only, checked against the hashes of
requirements.lock, no docker. One asset for all functions, because most of it is the same SDK, and because one hash says
which version of the whole control plane is deployed. An unchanged bundle is not built again.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import jsii
from aws_cdk import aws_lambda as lambda_

from infra.packaging.locked_requirements import closure, declared_requirements, read_lock, requirements_text
from infra.packaging.project import LOCK_FILE, PYPROJECT_FILE, ROOT, source_files

PYTHON_VERSION = "3.13"
PYTHON_PLATFORM = "aarch64-manylinux2014"
RUNTIME = lambda_.Runtime.PYTHON_3_13
ARCHITECTURE = lambda_.Architecture.ARM_64

SOURCE_PACKAGES = ("headrace", "functions")
_EXTRA = "controller"
_INSTALL_TIMEOUT_S = 300


def lambda_code() -> lambda_.AssetCode:
    """The bundle as code of functions of one stack; stacks that ask again get the same asset."""
    requirements = _requirements()
    return lambda_.Code.from_asset(
        str(ROOT / "functions"),
        asset_hash=_fingerprint(requirements),
        asset_hash_type=cdk.AssetHashType.CUSTOM,
        bundling=cdk.BundlingOptions(
            # Demanded by the type and never pulled: the local bundling below always succeeds or raises.
            image=cdk.DockerImage.from_registry("never-used"),
            local=_UvBundling(requirements),
        ),
    )


def build_bundle(target: Path, requirements: str) -> None:
    """Fill `target` with what the functions import.

    Raises:
        RuntimeError: uv is missing, or a package cannot be installed; the message holds what uv said.
    """
    requirements_file = target / "requirements.txt"
    requirements_file.write_text(requirements)
    command = [_uv(), "pip", "install", "--quiet", "--target", str(target), "--no-deps", "--require-hashes"]
    command += ["--python-version", PYTHON_VERSION, "--python-platform", PYTHON_PLATFORM, "--only-binary", ":all:"]
    command += ["--requirement", str(requirements_file)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"bundling the Lambda functions failed: {finished.stderr.strip()}")
    (target / ".lock").unlink(missing_ok=True)
    shutil.rmtree(target / "bin", ignore_errors=True)
    for relative, file in source_files(*SOURCE_PACKAGES):
        copy = target / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


@jsii.implements(cdk.ILocalBundling)
class _UvBundling:
    """Builds the bundle where the CDK would start a container."""

    def __init__(self, requirements: str) -> None:
        self._requirements = requirements

    def try_bundle(self, output_dir: str, *_options: Any, **_more_options: Any) -> bool:
        build_bundle(Path(output_dir), self._requirements)
        return True


def _requirements() -> str:
    roots = declared_requirements(PYPROJECT_FILE.read_text(), _EXTRA)
    return requirements_text(closure(read_lock(LOCK_FILE.read_text()), roots))


def _fingerprint(requirements: str) -> str:
    """Changes with everything that decides what the bundle holds, this module included."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(requirements.encode())
    for relative, file in source_files(*SOURCE_PACKAGES):
        content = file.read_bytes()
        digest.update(f"\0{relative}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _uv() -> str:
    """uv of the running environment, else of PATH."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise RuntimeError("uv is needed to bundle the Lambda functions: run `make setup`, or put uv on PATH")
    return found

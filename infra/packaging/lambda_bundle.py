"""The bundle that Lambda functions share: the handlers, what they import, and their locked dependencies.

Built by uv on the machine that synthesizes, for the machine that runs it: wheels only, checked against the hashes of
requirements.lock, no docker. One asset for all functions, because most of it is the same SDK, and because one hash says
which version of the whole control plane is deployed. The exceptions are the function that issues certificates, which
needs a large package, and two for the network, which need a large model of an AWS service.
An unchanged bundle is not built again.

A cold start unpacks, compiles and imports the bundle, so it holds byte code, of botocore's data only the services in
use, and package roots that import their parts when they are used. The byte code needs an interpreter of Lambda's
version on the machine that synthesizes. Without one the bundle works all the same, twice as slow to start, and has
another name.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import jsii
from aws_cdk import aws_lambda as lambda_

from headrace import topology
from infra.packaging import botocore_data, byte_code, installed_wheels, lazy_packages
from infra.packaging.import_closure import import_closure, imported_from_outside
from infra.packaging.installed_wheels import install_wheels
from infra.packaging.locked_requirements import closure, declared_requirements, read_lock, requirements_text
from infra.packaging.project import LOCK_FILE, PYPROJECT_FILE, ROOT

PYTHON_VERSION = "3.13"
PYTHON_PLATFORM = "aarch64-manylinux2014"
RUNTIME = lambda_.Runtime.PYTHON_3_13
ARCHITECTURE = lambda_.Architecture.ARM_64

DEPLOYED_TO = "/var/task"
"""Where Lambda unpacks a bundle."""
UNUSED = (
    "aws_lambda_powertools/event_handler/openapi/swagger_ui/swagger-ui-bundle.min.js",
    "aws_lambda_powertools/utilities/auth_alpha",
    "aws_lambda_powertools/utilities/circuit_breaker",
    "aws_lambda_powertools/utilities/data_masking",
    "aws_lambda_powertools/utilities/feature_flags",
    "aws_lambda_powertools/utilities/idempotency",
    "aws_lambda_powertools/utilities/kafka",
    "aws_lambda_powertools/utilities/parameters",
    "aws_lambda_powertools/utilities/streaming",
    "dateutil/zoneinfo",
)
"""Large parts of packages that no handler imports: a fifth of the bundle."""
_RECIPE = (__file__, installed_wheels.__file__, botocore_data.__file__, byte_code.__file__, lazy_packages.__file__)
"""The modules that decide what becomes of the same requirements and sources."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The functions that share a bundle, the extras of pyproject.toml for them, and the AWS services that they call."""

    functions: tuple[topology.Function, ...]
    extras: tuple[str, ...]
    services: frozenset[str]
    left_out: frozenset[str] = frozenset()
    """Packages that modules of the bundle import only for what its functions do not use."""


_ALL = (*topology.FUNCTIONS, *topology.DEPLOYMENT_FUNCTIONS)
SHARED = Bundle(tuple(each for each in _ALL if not each.has_own_bundle), ("controller",), botocore_data.SERVICES)
"""Some deployments lack some of the functions."""
CERTIFICATES = Bundle((topology.CERTIFICATES,), ("controller", "certificates"), botocore_data.SERVICES | {"kms"})

NETWORK = Bundle(
    (topology.EXTERNAL_TARGETS, topology.PREFIX_LISTS), ("controller",), botocore_data.SERVICES | {"ec2", "elbv2"}
)
"""botocore's model of EC2 is as large as those of all other services together."""

CANARY = Bundle(
    (topology.CANARY,), ("controller",), botocore_data.SERVICES, left_out=frozenset({"numpy", "pyarrow", "uvloop"})
)
"""The client with its HTTP library, which no other function needs."""


def lambda_code(bundle: Bundle = SHARED) -> lambda_.AssetCode:
    """The bundle as code of functions of one stack; stacks that ask again get the same asset."""
    requirements, interpreter = bundle_requirements(bundle), byte_code.find_interpreter(PYTHON_VERSION)
    if interpreter is None:
        print(f"no Python {PYTHON_VERSION} found: the functions get no byte code and start slowly", file=sys.stderr)
    return lambda_.Code.from_asset(
        str(ROOT / "functions"),
        asset_hash=_fingerprint(requirements, bundle, has_byte_code=interpreter is not None),
        asset_hash_type=cdk.AssetHashType.CUSTOM,
        bundling=cdk.BundlingOptions(
            # Demanded by the type and never pulled: the local bundling below always succeeds or raises.
            image=cdk.DockerImage.from_registry("never-used"),
            local=_UvBundling(bundle, requirements, interpreter),
        ),
    )


def build_bundle(
    target: Path,
    requirements: str,
    interpreter: Path | None,
    platform: str = PYTHON_PLATFORM,
    bundle: Bundle = SHARED,
) -> None:
    """Fill `target` with what the functions import, compiled by `interpreter`.

    Raises:
        RuntimeError: uv is missing, or a package cannot be installed or compiled; the message says why.
        FileNotFoundError: botocore does not hold its data as it used to, or a package to be rewritten is gone.
        ValueError: the root of a package to be rewritten does more than gather names.
    """
    install_wheels(target, requirements, python_version=PYTHON_VERSION, platform=platform)
    for part in UNUSED:
        _remove(target / part)
    for record in target.glob("*.dist-info/RECORD"):  # it lists what is no longer there
        record.unlink()
    botocore_data.reduce_botocore_data(target / "botocore" / "data", bundle.services)
    lazy_packages.defer_imports_of_roots(target)
    for file in bundle_sources(bundle):
        copy = target / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    if interpreter is not None:
        byte_code.compile_sources(target, interpreter, DEPLOYED_TO)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def bundle_sources(bundle: Bundle = SHARED) -> list[Path]:
    """The modules of the handlers, and those of this project that they import."""
    return import_closure(ROOT, [each.handler.rpartition(".")[0] for each in bundle.functions])


def bundle_requirements(bundle: Bundle = SHARED) -> str:
    """What the handlers import from outside, and what that needs: of the declared requirements no others."""
    declared = declared_requirements(PYPROJECT_FILE.read_text(), *bundle.extras)
    names = imported_from_outside(ROOT, bundle_sources(bundle)) - bundle.left_out
    imported = {name.replace("_", "-") for name in names}
    if undeclared := imported - declared:
        raise RuntimeError(f"functions import what pyproject.toml does not declare: {', '.join(sorted(undeclared))}")
    return requirements_text(closure(read_lock(LOCK_FILE.read_text()), imported))


@jsii.implements(cdk.ILocalBundling)
class _UvBundling:
    """Builds the bundle where the CDK would start a container."""

    def __init__(self, bundle: Bundle, requirements: str, interpreter: Path | None) -> None:
        self._bundle = bundle
        self._requirements = requirements
        self._interpreter = interpreter

    def try_bundle(self, output_dir: str, *_options: Any, **_more_options: Any) -> bool:
        build_bundle(Path(output_dir), self._requirements, self._interpreter, bundle=self._bundle)
        return True


def _fingerprint(requirements: str, bundle: Bundle = SHARED, *, has_byte_code: bool) -> str:
    """Changes with everything that decides what the bundle holds, this module included."""
    digest = hashlib.sha256(f"{requirements}\0{has_byte_code}\0{sorted(bundle.services)}".encode())
    for file in (*map(Path, _RECIPE), *bundle_sources(bundle)):
        content = file.read_bytes()
        digest.update(f"\0{file.relative_to(ROOT).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()

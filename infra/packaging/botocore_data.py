"""Reduces botocore's data to what this project's clients read: three quarters of a bundle are models of other services.

Kept are the models of the services in use without their prose, and of the list of endpoints the same services. What
botocore validates and sends is not touched.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

SERVICES = frozenset({"dynamodb", "logs", "s3", "secretsmanager", "sqs"})
"""What the clients are for that most artefacts make."""

_MODELS = ("service-2.json.gz", "endpoint-rule-set-1.json.gz", "paginators-1.json", "waiters-2.json")


def reduce_botocore_data(data: Path, services: Collection[str] = SERVICES) -> None:
    """Reduce the folder `botocore/data` to some services.

    Raises:
        FileNotFoundError: a service in use is not there, or is not kept as it was.
    """
    for service in (path for path in data.iterdir() if path.is_dir()):
        if service.name in services:
            _reduce_service(service)
        else:
            shutil.rmtree(service)
    missing = [name for name in sorted(services) if not list((data / name).glob("*/service-2.json.gz"))]
    if missing:
        raise FileNotFoundError(f"botocore has no model of {', '.join(missing)}: the layout of its data has changed")
    _reduce_endpoints(data / "endpoints.json", services)


def _reduce_service(service: Path) -> None:
    versions = sorted(path for path in service.iterdir() if path.is_dir())
    for version in versions[:-1]:  # botocore loads the newest
        shutil.rmtree(version)
    for file in versions[-1].iterdir() if versions else ():
        if file.name == "service-2.json.gz":
            model = _without_prose(json.loads(gzip.decompress(file.read_bytes())))
            _replace(file, gzip.compress(_compact(model), mtime=0))
        elif file.name not in _MODELS and not file.name.endswith(".sdk-extras.json"):
            file.unlink()


def _reduce_endpoints(file: Path, services: Collection[str]) -> None:
    endpoints = json.loads(file.read_text())
    for partition in endpoints["partitions"]:
        partition["services"] = {name: service for name, service in partition["services"].items() if name in services}
    _replace(file, _compact(endpoints))


def _replace(file: Path, content: bytes) -> None:
    """As a new file: the old one may be a hard link to an installed package, which must stay whole."""
    file.unlink()
    file.write_bytes(content)


def _without_prose(node: Any) -> Any:
    """Empty the prose; botocore insists on some of the keys. A shape or a member may be called "documentation", too."""
    if isinstance(node, dict):
        return {
            name: "" if name == "documentation" and isinstance(value, str) else _without_prose(value)
            for name, value in node.items()
        }
    if isinstance(node, list):
        return [_without_prose(value) for value in node]
    return node


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

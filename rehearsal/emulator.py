"""The emulator of AWS as a process: on loopback, at a port that the system chose, with TLS, and with IAM enforced."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rehearsal import emulator_patches, processes
from rehearsal.emulator_patches import SETTLED_FOLDER_VARIABLE
from rehearsal.paths import EMULATOR_PYTHON, HOME, ROOT, SCRATCH, SETTLED, TEMPORARY

ACCOUNT: Final = "000000000000"
REGION: Final = "us-east-1"
ADMINISTRATOR: Final = "test"
"""Key and secret of the account's administrator, as MiniStack has them."""
FUNCTION_PYTHON: Final = "3.13"
"""What functions run with on AWS. Their bundles have wheels for it."""
START_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.2
OWN_TRUST: Final = ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
"""Variables of the shell with certificates. With them the emulator's own programs would not trust its certificate."""


class EmulatorMissingError(RuntimeError):
    """The environment of the emulator is missing, or has another Python than functions on AWS."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the emulator answers, and its certificate."""

    port: int
    certificate: Path

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def api_url(self, api_id: str) -> str:
        """The URL of the HTTP API with this id."""
        return f"{self.url}/_aws/execute-api/{api_id}/$default"

    @property
    def trust(self) -> dict[str, str]:
        """Variables by which programs of Python and of Node trust the emulator."""
        certificate = str(self.certificate)
        return {"AWS_CA_BUNDLE": certificate, "SSL_CERT_FILE": certificate, "NODE_EXTRA_CA_CERTS": certificate}

    def variables(self, key: str = ADMINISTRATOR, secret: str = ADMINISTRATOR) -> dict[str, str]:
        """The environment of a program that uses the emulator with these credentials, and no others."""
        return {
            **inherited(os.environ),
            **self.trust,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "HOME": str(HOME),
        }


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without certificates, proxies and variables of AWS. The project's tools come first on PATH."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith("AWS_") and name not in OWN_TRUST and not name.lower().endswith("_proxy")
    }
    tools = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return {**kept, "PATH": tools, "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}


def python_version(configuration: str) -> str:
    """The minor version of an environment's Python, such as 3.13, from its pyvenv.cfg; empty if it does not say."""
    match = re.search(r"^version(?:_info)? *= *(\d+\.\d+)", configuration, re.MULTILINE)
    return match[1] if match else ""


def free_port() -> int:
    """A port of loopback that no process has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start() -> tuple[subprocess.Popen[bytes], Endpoint]:
    """Start the emulator and wait until it answers.

    Raises:
        EmulatorMissingError: `make .venv-rehearsal/.installed` has not made its environment.
        ProcessFailedError: it ends, or does not answer in time; the message has the end of its log.
    """
    if not EMULATOR_PYTHON.exists():
        raise EmulatorMissingError(f"{EMULATOR_PYTHON.relative_to(ROOT)} is missing: run `make rehearse`")
    version = python_version((EMULATOR_PYTHON.parents[1] / "pyvenv.cfg").read_text())
    if version != FUNCTION_PYTHON:
        raise EmulatorMissingError(f"functions need Python {FUNCTION_PYTHON}, the emulator has {version}: install it")
    for folder in (HOME, TEMPORARY, SETTLED):
        folder.mkdir(parents=True, exist_ok=True)
    endpoint = Endpoint(free_port(), TEMPORARY / "ministack-tls" / "server.crt")
    variables = inherited(os.environ) | {
        "AUTH": "true",
        "USE_SSL": "1",
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(endpoint.port),
        "MINISTACK_HOST": "localhost",
        "MINISTACK_REGION": REGION,
        "S3_DATA_DIR": str(SCRATCH / "s3"),
        "TMPDIR": str(TEMPORARY),
        "HOME": str(HOME),
        "DOCKER_HOST": f"unix://{SCRATCH}/no-docker.sock",
        "AWS_ACCESS_KEY_ID": ADMINISTRATOR,
        SETTLED_FOLDER_VARIABLE: str(SETTLED),
    }
    process = processes.start("emulator", [str(EMULATOR_PYTHON), emulator_patches.__file__], variables, SCRATCH)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(endpoint):
        if process.poll() is not None or time.monotonic() > deadline:
            raise processes.ProcessFailedError(f"the emulator does not answer:\n{processes.log_end('emulator')}")
        time.sleep(POLL_S)
    return process, endpoint


def _answers(endpoint: Endpoint) -> bool:
    if not endpoint.certificate.exists():
        return False
    try:
        trusted = ssl.create_default_context(cafile=str(endpoint.certificate))
        with urllib.request.urlopen(f"{endpoint.url}/_ministack/health", timeout=5, context=trusted) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False

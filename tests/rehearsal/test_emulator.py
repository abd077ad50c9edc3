"""The environment of programs that use the emulator."""

from __future__ import annotations

from pathlib import Path

from infra.packaging import lambda_bundle
from rehearsal.emulator import FUNCTION_PYTHON, Endpoint, free_port, inherited, python_version


def test_certificates_and_credentials_are_not_inherited():
    shell = {
        "AWS_CA_BUNDLE": "/a",
        "SSL_CERT_FILE": "/b",
        "REQUESTS_CA_BUNDLE": "/c",
        "NODE_EXTRA_CA_CERTS": "/d",
        "AWS_PROFILE": "real",
        "AWS_SECRET_ACCESS_KEY": "real",
        "https_proxy": "http://proxy",
        "LANG": "C",
        "PATH": "/bin",
    }
    kept = inherited(shell)
    assert kept["LANG"] == "C"
    assert kept["PATH"].endswith(":/bin")
    assert set(kept) & (set(shell) - {"LANG", "PATH"}) == set()


def test_programs_trust_the_emulator_and_have_its_credentials():
    endpoint = Endpoint(4_711, Path("/scratch/server.crt"))
    variables = endpoint.variables("key", "secret")
    assert variables["AWS_ENDPOINT_URL"] == "https://localhost:4711"
    assert variables["SSL_CERT_FILE"] == variables["AWS_CA_BUNDLE"] == "/scratch/server.crt"
    assert (variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"]) == ("key", "secret")
    assert "AWS_PROFILE" not in variables


def test_the_system_chooses_ports():
    assert free_port() > 0


def test_the_emulator_has_the_python_of_functions():
    assert FUNCTION_PYTHON == lambda_bundle.PYTHON_VERSION
    assert python_version("home = /usr/bin\nversion_info = 3.13.0\n") == "3.13"
    assert python_version("version = 3.11.7\n") == "3.11"
    assert python_version("home = /usr/bin\n") == ""

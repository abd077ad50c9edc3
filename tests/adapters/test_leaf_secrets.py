"""Where a process gets its certificate: settings, a file, and a secret."""

from __future__ import annotations

from pathlib import Path

import botocore.session
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber
from certificates_at_hand import Authority

from headrace.adapters.leaf_secrets import LeafFile, LeafInSecretsManager, TlsSettings, tls_settings
from headrace.codec.certificates import leaf_secret_text
from headrace.model.errors import CorruptError, IllegalStateError, InvalidRequestError, UnavailableError
from headrace.model.tls_modes import TlsMode, is_store_name, is_tls_name

NAME = "store-0.headrace.internal"
LEAF = Authority().issue(NAME)
REQUIRED = {"HEADRACE_TLS": "required", "HEADRACE_TLS_NAME": NAME}


def test_tls_is_off_by_default() -> None:
    assert tls_settings({}) == tls_settings({"HEADRACE_TLS": "off", "HEADRACE_TLS_FILE": "/none"}) == TlsSettings()


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"HEADRACE_TLS": "on"}, "HEADRACE_TLS is 'on', expected off, permissive, required"),
        (REQUIRED, "none is set"),
        (REQUIRED | {"HEADRACE_TLS_FILE": "/f", "HEADRACE_TLS_SECRET": "s"}, "both are set"),
        ({"HEADRACE_TLS": "permissive", "HEADRACE_TLS_FILE": "/f"}, "HEADRACE_TLS_NAME is ''"),
        (REQUIRED | {"HEADRACE_TLS_FILE": "/f", "HEADRACE_TLS_NAME": "10.0.0.1:5"}, "HEADRACE_TLS_NAME"),
    ],
)
def test_wrong_settings_are_refused(environment: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        tls_settings(environment)


def test_settings_choose_the_source(tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(leaf_secret_text(LEAF))
    path.chmod(0o600)
    settings = tls_settings(REQUIRED | {"HEADRACE_TLS_FILE": str(path)})
    assert (settings.mode, settings.name) == (TlsMode.REQUIRED, NAME)
    assert settings.source is not None
    assert settings.source.read() == LEAF
    assert isinstance(tls_settings(REQUIRED | {"HEADRACE_TLS_SECRET": "s"}).source, LeafInSecretsManager)


@pytest.mark.parametrize(
    ("text", "mode", "kind", "words"),
    [
        (None, 0o600, IllegalStateError, "cannot be read"),
        (leaf_secret_text(LEAF), 0o644, IllegalStateError, "set its mode to 600"),
        ("{}", 0o600, CorruptError, "needs the texts"),
        ("\udcff", 0o600, CorruptError, "not ASCII"),
        (" " * 70_000, 0o600, CorruptError, "more than"),
    ],
    ids=["missing", "open to others", "not a secret", "not text", "too long"],
)
def test_an_unusable_file_is_refused(
    tmp_path: Path, text: str | None, mode: int, kind: type[Exception], words: str
) -> None:
    path = tmp_path / "certificate.json"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
        path.chmod(mode)
    with pytest.raises(kind, match=words):
        LeafFile(path).read()


def test_a_secret_is_read_each_time_and_refusals_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    client = botocore.session.get_session().create_client(
        "secretsmanager", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    source = LeafInSecretsManager("the-secret", client)
    with Stubber(client) as stub:
        for answer in ({"SecretString": leaf_secret_text(LEAF)}, {"SecretBinary": b"x"}):
            stub.add_response("get_secret_value", answer, {"SecretId": "the-secret"})
        stub.add_client_error("get_secret_value", "AccessDeniedException")
        assert source.read() == LEAF
        with pytest.raises(IllegalStateError, match="has no text"):
            source.read()
        with pytest.raises(UnavailableError, match="AccessDeniedException"):
            source.read()

    def away(**_: str) -> dict[str, object]:
        raise EndpointConnectionError(endpoint_url="https://x")

    monkeypatch.setattr(client, "get_secret_value", away)
    with pytest.raises(UnavailableError, match="does not answer"):
        source.read()


LONGEST_NAME = ".".join(["a" * 63] * 3 + ["b" * 61])


@pytest.mark.parametrize("name", ["store-0.headrace.internal", "a.b", "store-0.streams.example.com", LONGEST_NAME])
def test_dns_names_are_names(name: str) -> None:
    assert is_tls_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "store-0", "a..b", "-a.b", "A.b", "a.b.", "a." * 130 + "b", "*.a.b", "ä.b", "a.b\n", LONGEST_NAME + "b"],
)
def test_other_texts_are_no_names(name: str) -> None:
    assert not is_tls_name(name)


def test_only_names_of_stores_of_the_deployment_are_those() -> None:
    assert is_store_name("store-12.headrace.internal", NAME)
    for other in ("controller.headrace.internal", "store-1.example.com", "store-x.headrace.internal", "store-1"):
        assert not is_store_name(other, NAME)


@pytest.mark.parametrize(
    ("mode", "plaintext", "tls"),
    [(TlsMode.OFF, True, False), (TlsMode.PERMISSIVE, True, True), (TlsMode.REQUIRED, False, True)],
)
def test_what_a_store_accepts_in_each_step(mode: TlsMode, *, plaintext: bool, tls: bool) -> None:
    assert (mode.accepts_plaintext, mode.accepts_tls) == (plaintext, tls)

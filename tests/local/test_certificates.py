"""The certificates of a local stack: new at each start, for their owner only, and accepted by the stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.adapters.leaf_secrets import TlsSettings, tls_settings
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.system_clock import SystemClock
from headrace.adapters.tcp.tls_contexts import store_contexts
from headrace.local import certificates
from headrace.local.certificates import OFF, LocalCertificates
from headrace.metadata.trust import find_trust
from headrace.model.tls_modes import TlsMode

OF_A_SHELL = {"HEADRACE_TLS": "permissive", "HEADRACE_TLS_SECRET": "of-the-shell", "HEADRACE_TLS_NAME": "x.y"}


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    return [tmp_path / "store-0", tmp_path / "store-1"]


@pytest.fixture
def started(directories: list[Path]) -> Iterator[tuple[LocalCertificates, MemoryMetadataStore]]:
    store = MemoryMetadataStore()
    made = LocalCertificates(directories, directories[0].parent / "bridge", SystemClock())
    made.start(store)
    yield made, store
    made.stop()


def test_each_store_has_a_certificate_that_is_accepted(
    started: tuple[LocalCertificates, MemoryMetadataStore], directories: list[Path]
) -> None:
    made, store = started
    published = find_trust(store)
    assert published is not None
    for index, directory in enumerate(directories):
        settings = tls_settings(OF_A_SHELL | made.environment(index, TlsMode.REQUIRED))
        assert (settings.mode, settings.name) == (TlsMode.REQUIRED, f"store-{index}.headrace.internal")
        assert settings.source is not None
        store_contexts(settings.source.read(), published.bundle, settings.name)
        assert (directory / "certificate.json").stat().st_mode & 0o777 == 0o600
        assert [each.name for each in directory.iterdir()] == ["certificate.json"]
        assert made.tls_to(index).name == settings.name
    assert tls_settings(OF_A_SHELL | OFF) == TlsSettings()


def test_the_bridge_has_a_certificate_of_its_own(started: tuple[LocalCertificates, MemoryMetadataStore]) -> None:
    made, store = started
    published, settings = find_trust(store), tls_settings(OF_A_SHELL | made.bridge_environment)
    assert published is not None
    assert settings.name == "controller.headrace.internal"
    assert settings.source is not None
    for name in (settings.name, "localhost"):
        store_contexts(settings.source.read(), published.bundle, name)


def test_each_start_has_another_authority(
    started: tuple[LocalCertificates, MemoryMetadataStore], directories: list[Path]
) -> None:
    _, store = started
    before = find_trust(store)
    again = LocalCertificates(directories, directories[0].parent / "bridge", SystemClock())
    again.start(store)
    again.stop()
    after = find_trust(store)
    assert before is not None
    assert after is not None
    assert len(after.bundle.certificates) == 1
    assert after.bundle != before.bundle


def test_certificates_are_renewed(directories: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "RENEW_EVERY_S", 0.001)
    made = LocalCertificates(directories, directories[0].parent / "bridge", SystemClock())
    made.start(MemoryMetadataStore())
    try:
        before = (directories[1] / "certificate.json").read_text()
        while (directories[1] / "certificate.json").read_text() == before:
            pass
    finally:
        made.stop()

"""Builds what issues certificates. All functions import `functions.wiring`, whose bundle lacks these packages."""

from __future__ import annotations

from typing import Any, Final

from botocore.config import Config

from functions import wiring
from functions.built_once import once
from headrace.adapters.certificate_secrets import SecretsManagerCertificates
from headrace.adapters.kms_signing_key import KmsSigningKey
from headrace.certificates.upkeep import CertificateUpkeep

CONNECT_TIMEOUT_S: Final = 2
READ_TIMEOUT_S: Final = 5
ATTEMPTS_MAX: Final = 3


@once
def certificate_upkeep() -> CertificateUpkeep:
    kms = _client("kms")
    keys = [KmsSigningKey(kms, key) for key in wiring.environment().authority_keys]
    secrets = SecretsManagerCertificates(_client("secretsmanager"))
    domain = wiring.environment().external_domain
    return CertificateUpkeep(wiring.metadata_store(), secrets, keys, wiring.clock(), domain)


def _client(service: str) -> Any:
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
    )
    session: Any = wiring.aws_session()
    return session.create_client(service, config=config)

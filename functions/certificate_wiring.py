"""Builds what issues certificates. All functions import `functions.wiring`, whose bundle lacks these packages."""

from __future__ import annotations

from functions import wiring
from functions.aws_clients import aws_client
from functions.built_once import once
from headrace.adapters.certificate_secrets import SecretsManagerCertificates
from headrace.adapters.kms_signing_key import KmsSigningKey
from headrace.certificates.upkeep import CertificateUpkeep


@once
def certificate_upkeep() -> CertificateUpkeep:
    kms = aws_client("kms")
    keys = [KmsSigningKey(kms, key) for key in wiring.environment().authority_keys]
    secrets = SecretsManagerCertificates(aws_client("secretsmanager"))
    domain = wiring.environment().external_domain
    return CertificateUpkeep(wiring.metadata_store(), secrets, keys, wiring.clock(), domain)

"""A run over certificates may end anywhere and be run twice at once; the next one makes all certificates valid."""

from __future__ import annotations

import base64
import json

import pytest
from certificate_world import LABELS, CertificateWorld, Interrupted
from cryptography import x509

from headrace.certificates.profile import load_certificate
from headrace.certificates.upkeep import PUBLISH_ATTEMPTS_MAX, CertificateUpkeep
from headrace.codec.certificates import TrustBundle, parse_leaf_secret
from headrace.metadata.trust import find_trust, trust_key, write_trust
from headrace.model.certificate_authorities import ENDS_SOON_S
from headrace.model.errors import ConflictError, CorruptError, IllegalStateError, InvalidRequestError
from headrace.ports.metadata_store import Create


@pytest.fixture
def world() -> CertificateWorld:
    return CertificateWorld()


def test_the_first_run_issues_everything(world: CertificateWorld):
    report = world.upkeep().run(LABELS)
    assert (tuple(report.issued), report.failed, report.authority_ends_soon) == (LABELS, {}, False)
    assert len(world.bundle.certificates) == 1
    assert all(map(world.is_trusted, LABELS))


def test_a_second_run_changes_nothing(world: CertificateWorld):
    world.upkeep().run(LABELS)
    texts, record = dict(world.secrets.texts), world.store.get(trust_key())
    world.advance(3.9)
    assert world.upkeep().run(LABELS).issued == {}
    assert (world.secrets.texts, world.store.get(trust_key())) == (texts, record)


def test_certificates_are_renewed_below_ten_days(world: CertificateWorld):
    world.upkeep().run(LABELS)
    bundle = world.bundle
    world.advance(4.1)
    assert dict(world.upkeep().run(LABELS).issued) == dict.fromkeys(LABELS, "it ends soon")
    assert world.bundle == bundle


def test_a_new_label_gets_a_certificate(world: CertificateWorld):
    world.upkeep().run(LABELS[:1])
    assert tuple(world.upkeep().run(LABELS).issued) == LABELS[1:]


def test_a_secret_of_another_label_is_replaced(world: CertificateWorld):
    world.upkeep().run(LABELS)
    world.secrets.texts["store-1"] = world.secrets.texts["store-0"]
    assert dict(world.upkeep().run(LABELS).issued) == {"store-1": "its names are not those of now"}


def test_an_external_domain_adds_a_name(world: CertificateWorld):
    world.upkeep().run(LABELS)
    outside = CertificateUpkeep(world.store, world.secrets, world.keys, world.clock, "streams.example.com")
    assert dict(outside.run(LABELS).issued) == dict.fromkeys(LABELS, "its names are not those of now")
    assert outside.run(LABELS).issued == {}
    leaf = load_certificate(parse_leaf_secret(world.secrets.texts["store-1"]).certificate)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["store-1.headrace.internal", "store-1.streams.example.com"]


def other_algorithm(pem: str, oid: str) -> str:
    """The document with another object identifier of the same length, which no library knows."""
    first, *lines, last = pem.splitlines()
    der = base64.b64decode("".join(lines))
    changed = der.replace(bytes.fromhex(oid), bytes.fromhex(oid)[:-1] + b"\x77")
    assert changed != der
    return "\n".join((first, base64.b64encode(changed).decode(), last, ""))


@pytest.mark.parametrize("part", ["certificate", "key"])
@pytest.mark.parametrize("oid", ["2a8648ce3d0201", "2a8648ce3d030107"], ids=["kind", "curve"])
def test_a_key_of_an_unknown_kind_stops_no_other(world: CertificateWorld, part: str, oid: str):
    world.upkeep().run(LABELS)
    secret = json.loads(world.secrets.texts["store-0"])
    secret[part] = other_algorithm(secret[part], oid)
    world.secrets.texts |= {"store-0": json.dumps(secret), "store-1": "{}"}
    assert dict(world.upkeep().run(LABELS).issued) == dict.fromkeys(LABELS[:2], "there is none yet")


def test_an_authority_of_an_unknown_kind_is_refused(world: CertificateWorld):
    world.upkeep().run(LABELS)
    (text,) = world.bundle.certificates
    bundle = TrustBundle((other_algorithm(text, "2a8648ce3d0201"),))
    world.store.write(write_trust(bundle, 0))
    with pytest.raises(CorruptError, match="a key of another kind"):
        world.upkeep().run(LABELS)


def test_a_label_that_is_refused_stops_no_other(world: CertificateWorld):
    world.secrets.refused = {"store-0"}
    report = world.upkeep().run(LABELS)
    assert (tuple(report.issued), tuple(report.failed)) == (LABELS[1:], ("store-0",))
    world.secrets.refused = set()
    assert tuple(world.upkeep().run(LABELS).issued) == ("store-0",)


def test_a_signature_that_is_refused_stops_no_other(world: CertificateWorld):
    signatures = 0

    def before(step: str) -> None:
        nonlocal signatures
        signatures += step == "sign"
        if step == "sign" and signatures == 2:  # the first one is that of the authority
            raise IllegalStateError("KMS refuses")

    world.before = before
    report = world.upkeep().run(LABELS)
    assert (tuple(report.issued), tuple(report.failed)) == (LABELS[1:], ("store-0",))


def test_an_authority_that_cannot_be_signed_publishes_nothing(world: CertificateWorld):
    def before(step: str) -> None:
        if step == "sign":
            raise IllegalStateError("KMS refuses")

    world.before = before
    with pytest.raises(IllegalStateError):
        world.upkeep().run(LABELS)
    assert find_trust(world.store) is None
    assert world.secrets.writes == []


def _steps(world: CertificateWorld) -> int:
    """The steps of a run: signatures, reads and writes of secrets."""
    steps: list[str] = []
    world.before = steps.append
    world.upkeep().run(LABELS)
    return len(steps)


STEPS = _steps(CertificateWorld())


def _interrupt(world: CertificateWorld, at: int) -> None:
    """Run until before step number `at`."""
    left = at

    def before(step: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Interrupted

    world.before = before
    with pytest.raises(Interrupted):
        world.upkeep().run(LABELS)
    world.before = lambda _: None


@pytest.mark.parametrize("at", range(STEPS))
def test_a_run_that_ends_anywhere_is_repeated(world: CertificateWorld, at: int):
    _interrupt(world, at)
    written = set(world.secrets.writes)
    assert all(map(world.is_trusted, written))
    assert world.upkeep().run(LABELS).failed == {}
    assert all(map(world.is_trusted, LABELS))
    assert sorted(world.secrets.writes) == sorted(LABELS)


@pytest.mark.parametrize("at", range(STEPS))
def test_two_runs_at_once_leave_valid_certificates(world: CertificateWorld, at: int):
    left = at

    def before(step: str) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            assert world.upkeep().run(LABELS).failed == {}

    world.before = before
    assert world.upkeep().run(LABELS).failed == {}
    assert all(map(world.is_trusted, LABELS))
    assert len(world.bundle.certificates) == 1


def test_a_bundle_that_always_changes_ends_the_run(world: CertificateWorld, monkeypatch: pytest.MonkeyPatch):
    world.upkeep().run(LABELS)
    world.keys.append(world.new_key())
    writes = 0

    def before(step: str) -> None:
        nonlocal writes
        writes += 1
        trust = find_trust(world.store)
        assert trust is not None
        world.store.write(write_trust(trust.bundle, trust.version))

    world.before = before
    with pytest.raises(ConflictError):
        world.upkeep().run(LABELS)
    assert writes == PUBLISH_ATTEMPTS_MAX


def test_a_rotation_keeps_every_certificate_trusted(world: CertificateWorld):
    world.upkeep().run(LABELS)
    (old,) = world.bundle.certificates
    world.keys.append(world.new_key())
    sizes = []
    for _ in range(50):
        assert world.upkeep().run(LABELS).failed == {}
        assert all(map(world.is_trusted, LABELS))
        sizes.append(len(world.bundle.certificates))
        world.advance(1)
    assert sizes == [2] * 44 + [1] * 6
    assert old not in world.bundle.certificates


def test_a_key_that_is_not_declared_loses_trust_at_once(world: CertificateWorld):
    """What an operator does when an authority can no longer be trusted."""
    world.upkeep().run(LABELS)
    (old,) = world.bundle.certificates
    world.keys = [world.new_key()]
    assert dict(world.upkeep().run(LABELS).issued) == dict.fromkeys(LABELS, "no trusted authority has issued it")
    assert old not in world.bundle.certificates
    assert all(map(world.is_trusted, LABELS))


def test_the_end_of_an_authority_is_told_in_time(world: CertificateWorld):
    world.upkeep().run(LABELS)
    world.advance(3_650 - ENDS_SOON_S / 86_400 + 1)
    report = world.upkeep().run(LABELS)
    assert (report.authority_ends_soon, report.failed) == (True, {})
    world.keys.append(world.new_key())
    assert world.upkeep().run(LABELS).authority_ends_soon is False


def test_a_damaged_bundle_is_not_replaced(world: CertificateWorld):
    """A new one would end the trust in all certificates: an operator must look at it first."""
    world.store.write(Create(trust_key(), {"format": 1, "certificates": []}))
    with pytest.raises(CorruptError):
        world.upkeep().run(LABELS)
    assert world.secrets.writes == []


def test_a_deployment_without_keys_is_refused(world: CertificateWorld):
    with pytest.raises(InvalidRequestError):
        CertificateUpkeep(world.store, world.secrets, [], world.clock)

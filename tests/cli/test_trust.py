"""`headrace trust`: the authorities of the deployment, as PEM or JSON."""

from __future__ import annotations

from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show

from headrace.codec.certificates import TrustBundle, bundle_of_pem
from headrace.metadata.trust import write_trust

FIRST = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
SECOND = FIRST.replace("AAAA", "BBBB")


def test_the_authorities_are_printed_as_one_file(api: ApiInMemory, ok: Show, as_json: ReadJson):
    api.store.write(write_trust(TrustBundle((FIRST, SECOND)), None))
    assert ok("trust") == FIRST + SECOND
    assert bundle_of_pem(ok("trust")) == TrustBundle((FIRST, SECOND))
    assert as_json("trust") == {"certificates": [FIRST, SECOND]}


def test_a_deployment_without_authorities_is_an_error(api: ApiInMemory, run: Run):
    ran = run("trust")
    assert ran.code != 0
    assert ran.out == ""
    assert "publishes no authority" in ran.err

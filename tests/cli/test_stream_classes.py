"""`headrace stream create --acknowledged-by`: what acknowledges a stream's appends is chosen once."""

from __future__ import annotations

import pytest
from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show

from functions import wiring


@pytest.fixture
def s3_containers(api: ApiInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deployment has containers whose logs are in S3."""
    monkeypatch.setenv("HEADRACE_S3_CONTAINERS", "4")
    wiring.forget_services()


@pytest.mark.usefixtures("s3_containers")
def test_s3_is_chosen_at_the_creation_and_stays(ok: Show, as_json: ReadJson):
    ok("scope", "create", "s")
    assert as_json("stream", "create", "s/t", "--acknowledged-by", "s3")["acknowledgedBy"] == "S3"
    assert as_json("stream", "update", "s/t", "--tag", "a")["acknowledgedBy"] == "S3"
    assert as_json("stream", "create", "s/u", "--acknowledged-by", "stores")["acknowledgedBy"] == "STORES"
    assert as_json("stream", "create", "s/v")["acknowledgedBy"] == "STORES"


def test_a_deployment_without_s3_containers_refuses(ok: Show, run: Run):
    ok("scope", "create", "s")
    refused = run("stream", "create", "s/t", "--acknowledged-by", "s3")
    assert refused.code == 1
    assert "s3_containers=4" in refused.err
    assert run("stream", "get", "s/t").code == 3

"""`headrace upgrade`: what it shows, and that it does not end the time for a rollback unasked."""

from __future__ import annotations

from api_in_memory import ApiInMemory
from command_line import ReadJson, Run, Show

from headrace.metadata.fixed_settings import FixedSetting, fixed_setting_body, fixed_setting_key
from headrace.model.formats import FIRST_RELEASE, RELEASE, formats_waiting
from headrace.ports.metadata_store import Create
from headrace.topology import CONTAINER_COUNT


def test_an_upgrade_is_shown_and_finalized(api: ApiInMemory, run: Run, ok: Show, as_json: ReadJson):
    api.store.write(Create(fixed_setting_key(FixedSetting.CONTAINERS), fixed_setting_body(CONTAINER_COUNT)))
    shown = ok("upgrade", "status")
    assert [line.split()[-1] for line in shown.splitlines()[:3]] == ["RELEASE", RELEASE, FIRST_RELEASE]
    assert all(name in shown for name in formats_waiting(FIRST_RELEASE))
    refused = run("upgrade", "finalize")
    assert refused.code == 1
    assert "add --yes" in refused.err
    assert as_json("upgrade", "status")["finalized"] == FIRST_RELEASE
    for _ in range(2):
        assert as_json("upgrade", "finalize", "--yes")["finalized"] == RELEASE
    assert "waits" not in ok("upgrade", "status")
    assert ok("upgrade", "finalize") == ok("upgrade", "status")

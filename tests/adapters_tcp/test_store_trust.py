"""The authorities that functions trust: read once, and again after a refusal, but not for each one."""

from __future__ import annotations

import pytest
from certificates_at_hand import Authority

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.adapters.tcp.store_trust import REREAD_AFTER_S, StoreTrust
from headrace.metadata.trust import write_trust
from headrace.model.errors import UnavailableError
from headrace.model.log_limits import LOGGED_EVERY_S

FIRST, SECOND = Authority().bundle, Authority("Second").bundle
REFUSED = UnavailableError("refused")


def test_authorities_are_read_once() -> None:
    store = MemoryMetadataStore()
    trust = StoreTrust(store)
    with pytest.raises(UnavailableError, match="has published no authority"):
        trust.context()
    store.write(write_trust(FIRST, None))
    context = trust.context()
    store.write(write_trust(SECOND, 0))
    assert trust.context() is context


def test_a_refusal_reads_them_again_from_time_to_time(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = MemoryMetadataStore(), ManualClock()
    store.write(write_trust(FIRST, None))
    trust = StoreTrust(store, clock.monotonic_s)
    context = trust.context()
    clock.advance(int(REREAD_AFTER_S * 1_000))
    assert trust.renewed(context, REFUSED) is None  # they have not changed
    store.write(write_trust(SECOND, 0))
    assert trust.renewed(context, REFUSED) is None  # it is too soon
    assert caplog.text.count("event=store_not_trusted") == 1
    clock.advance(int(max(REREAD_AFTER_S, LOGGED_EVERY_S) * 1_000))
    renewed = trust.renewed(context, REFUSED)
    assert renewed is not None
    assert renewed is not context
    assert trust.renewed(context, REFUSED) is renewed is trust.context()
    assert caplog.text.count("event=store_not_trusted") == 2

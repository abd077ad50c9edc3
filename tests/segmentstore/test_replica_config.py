"""The settings of a store whose log is kept by three stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.model.errors import InvalidRequestError
from segmentstore_fargate.config import process_environments, read_config

REQUIRED = {
    "HEADRACE_STORE_ID": "store-1",
    "HEADRACE_DATA_DIR": "/data",
    "HEADRACE_METADATA_TABLE": "table",
    "HEADRACE_CHUNK_BUCKET": "bucket",
}
SECRET = "hunter2-" * 4
REPLICATED = {
    **REQUIRED,
    "HEADRACE_COPIES": "3",
    "HEADRACE_REPLICA_PORT": "12745",
    "HEADRACE_REPLICA_SECRET": SECRET,
    "HEADRACE_CLUSTER_ID": "00112233445566778899AABBCCDDEEFF",
}


def test_a_store_keeps_one_copy_unless_told_otherwise():
    config = read_config(REQUIRED)
    assert (config.copies, config.replica_port) == (1, 0)
    assert (config.replica_secret, config.cluster_id) == (b"", bytes(16))


def test_a_replicated_store_knows_secret_and_cluster():
    config = read_config(REPLICATED)
    assert (config.copies, config.replica_port) == (3, 12745)
    assert config.replica_secret == SECRET.encode()
    assert config.cluster_id == bytes.fromhex("00112233445566778899aabbccddeeff")


def test_a_secret_of_one_copy_is_kept_for_three():
    config = read_config({**REPLICATED, "HEADRACE_COPIES": "1"})
    assert config.replica_secret == SECRET.encode()
    assert config.cluster_id != bytes(16)


def test_the_secret_is_not_shown():
    assert "hunter2" not in repr(read_config(REPLICATED))


def test_each_process_has_a_replica_port_of_its_own(tmp_path: Path):
    two = {**REPLICATED, "HEADRACE_PROCESSES": "2", "HEADRACE_CACHE_BYTES": str(512 << 20)}
    assert [read_config(each).replica_port for each in process_environments(two)] == [12745, 12746]
    chosen = {**two, "HEADRACE_REPLICA_PORT": "0"}
    assert [read_config(each).replica_port for each in process_environments(chosen)] == [0, 0]


@pytest.mark.parametrize("missing", ["HEADRACE_REPLICA_SECRET", "HEADRACE_CLUSTER_ID"])
def test_three_copies_need_secret_and_cluster_id(missing):
    with pytest.raises(InvalidRequestError, match=missing):
        read_config({name: value for name, value in REPLICATED.items() if name != missing})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADRACE_COPIES", "0"),
        ("HEADRACE_COPIES", "2"),
        ("HEADRACE_COPIES", "three"),
        ("HEADRACE_LOG_COMPRESSION", "yes"),
        ("HEADRACE_REPLICA_PORT", "-1"),
        ("HEADRACE_REPLICA_PORT", "65536"),
        ("HEADRACE_REPLICA_SECRET", "hunter2" * 4),
        ("HEADRACE_REPLICA_SECRET", "hunter2 " * 200),
        ("HEADRACE_REPLICA_SECRET", "hunter2-" * 4 + "\n"),
        ("HEADRACE_REPLICA_SECRET", "hünter2-" * 4),
        ("HEADRACE_CLUSTER_ID", "00112233445566778899aabbccddeef"),
        ("HEADRACE_CLUSTER_ID", "00112233445566778899aabbccddeeff\n"),
        ("HEADRACE_CLUSTER_ID", "not a number of sixteen bytes..."),
    ],
)
def test_a_wrong_value_is_named_and_no_secret_shown(name, value):
    with pytest.raises(InvalidRequestError, match=name) as raised:
        read_config({**REPLICATED, name: value})
    assert "nter2" not in raised.value.message


@pytest.mark.parametrize("other", ["HEADRACE_LISTEN_PORT", "HEADRACE_HEALTH_PORT"])
def test_processes_do_not_share_a_port(other):
    settings = {**REPLICATED, other: "12746", "HEADRACE_CACHE_BYTES": str(512 << 20)}
    assert read_config(settings).replica_port == 12745
    with pytest.raises(InvalidRequestError, match=f"HEADRACE_REPLICA_PORT is 12745 and {other} 12746"):
        read_config({**settings, "HEADRACE_PROCESSES": "2"})


@pytest.mark.parametrize(
    ("zone", "chosen", "compresses"),
    [("use1-az1", "auto", True), ("local", "auto", False), ("local", "on", True), ("use1-az1", "off", False)],
)
def test_entries_for_other_zones_are_compressed(zone, chosen, compresses):
    settings = {**REPLICATED, "HEADRACE_ZONE": zone, "HEADRACE_LOG_COMPRESSION": chosen}
    assert read_config(settings).compresses_log is compresses

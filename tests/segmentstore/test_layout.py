"""A volume with logs is only taken by the numbers of processes and stores that it was written with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.model.errors import CorruptError, IllegalStateError, InvalidRequestError
from segmentstore_fargate.config import process_environments, read_config
from segmentstore_fargate.layout import LAYOUT_NAME, settle_layout

VARIABLES = {
    "HEADRACE_STORE_ID": "store-1",
    "HEADRACE_METADATA_TABLE": "table",
    "HEADRACE_CHUNK_BUCKET": "bucket",
    "HEADRACE_CACHE_BYTES": str(512 << 20),
}


def _configs(data_dir: Path, **settings: object):
    changed = {f"HEADRACE_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {**VARIABLES, "HEADRACE_DATA_DIR": str(data_dir), **changed}
    return [read_config(each) for each in process_environments(environment)]


def _start(data_dir: Path, *, writes: bool = True, in_copies: int = 1, **settings: object) -> None:
    """All processes as far as their journals' first file."""
    for config in _configs(data_dir, **settings):
        settle_layout(config.data_dir, config.layout, in_copies)
        config.journal_dir.mkdir(parents=True, exist_ok=True)
        if writes:
            (config.journal_dir / "journal-0000000000000001").touch()


def test_processes_share_containers_cache_and_ports(tmp_path):
    configs = _configs(tmp_path, processes=2, store_index=1, store_count=3, listen_port=700, health_port=900)
    assert [config.containers for config in configs] == [(2,), (3,)]
    assert [config.store_id for config in configs] == ["store-1.0", "store-1.1"]
    assert [config.listen_port for config in configs] == [700, 701]
    assert [config.health_port for config in configs] == [900, 901]
    assert [config.cache_bytes for config in configs] == [256 << 20] * 2
    assert [config.journal_dir for config in configs] == [tmp_path / f"process-{n}" / "journal" for n in range(2)]


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_all_processes_of_all_stores_have_all_containers_once(tmp_path, processes):
    taken = [
        container
        for index in range(2)
        for config in _configs(tmp_path, processes=processes, store_index=index, store_count=2, container_count=8)
        for container in config.containers
    ]
    assert sorted(taken) == list(range(8))


def test_containers_of_s3_are_shared_and_are_not_on_the_volume(tmp_path):
    """So a volume stays usable when a deployment gets such containers."""
    settings = {"processes": 2, "store_index": 1, "store_count": 2, "container_count": 8}
    _start(tmp_path, **settings)
    configs = _configs(tmp_path, **settings, s3_containers=4)
    assert [config.containers for config in configs] == [(2, 6, 10), (3, 7, 11)]
    assert [config.container_count for config in configs] == [12, 12]
    assert configs[0].layout == _configs(tmp_path, **settings)[0].layout
    _start(tmp_path, **settings, s3_containers=4)


@pytest.mark.parametrize("count", [-1, 65, "four"])
def test_number_of_s3_containers_is_checked(tmp_path, count):
    with pytest.raises(InvalidRequestError, match="HEADRACE_S3_CONTAINERS"):
        _configs(tmp_path, s3_containers=count)


def test_the_same_settings_find_their_logs_again(tmp_path):
    for settings in ({}, {"processes": 2}):
        data_dir = tmp_path / str(len(settings))
        for _ in range(2):
            _start(data_dir, store_count=2, **settings)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"processes": 2}),
        ({"processes": 2}, {}),
        ({"processes": 2}, {"processes": 4}),
        ({}, {"store_count": 2}),
        ({"store_count": 2}, {"store_count": 2, "store_index": 1}),
        ({}, {"container_count": 9}),
    ],
)
def test_other_settings_do_not_take_a_volume_with_logs(tmp_path, before, after):
    _start(tmp_path, **before)
    written = (tmp_path / LAYOUT_NAME).read_text()
    with pytest.raises(IllegalStateError, match=r"start with the old numbers .*journal away"):
        _start(tmp_path, **after)
    assert (tmp_path / LAYOUT_NAME).read_text() == written


def test_replicas_may_be_laid_out_again(tmp_path):
    """What a journal holds is found by its replica id, not by its directory."""
    _start(tmp_path, in_copies=3)
    _start(tmp_path, in_copies=3, processes=2)
    assert sorted(json.loads((tmp_path / LAYOUT_NAME).read_text())) == ["process-0/journal", "process-1/journal"]


def test_a_volume_without_logs_is_laid_out_anew(tmp_path):
    _start(tmp_path, writes=False)
    _start(tmp_path, processes=2)
    assert json.loads((tmp_path / LAYOUT_NAME).read_text()) == {
        "process-0/journal": [0, 2, 4, 6],
        "process-1/journal": [1, 3, 5, 7],
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_logs_without_a_layout_are_refused(tmp_path, processes):
    _start(tmp_path)
    (tmp_path / LAYOUT_NAME).unlink()
    with pytest.raises(IllegalStateError, match="in an unknown way"):
        _start(tmp_path, processes=processes)


def test_a_layout_that_cannot_be_read_is_no_layout(tmp_path):
    _start(tmp_path)
    (tmp_path / LAYOUT_NAME).write_text('{"journal": [0')
    with pytest.raises(CorruptError, match=LAYOUT_NAME):
        _start(tmp_path)

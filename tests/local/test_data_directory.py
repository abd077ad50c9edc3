"""Which data are continued, and who may use a directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.local.data_directory import DataDirectory
from headrace.local.failures import LocalStackError


def close_well(world_dir: Path) -> None:
    """The files that a graceful shutdown leaves."""
    (world_dir / "aws").mkdir()
    (world_dir / "aws" / "complete").touch()


def test_the_first_world_is_new(tmp_path: Path):
    data = DataDirectory(tmp_path / "d")
    world = data.open(2)
    assert (world.directory, world.is_continued, world.note) == (tmp_path / "d" / "world-0001", False, "")
    data.close()


def test_a_world_that_was_stopped_well_is_continued(tmp_path: Path):
    first = DataDirectory(tmp_path)
    directory = first.open(2).directory
    close_well(directory)
    first.close()
    second = DataDirectory(tmp_path)
    world = second.open(2)
    assert (world.directory, world.is_continued) == (directory, True)
    second.close()


def test_crash_starts_a_new_world_and_keeps_the_old_one(tmp_path: Path):
    first = DataDirectory(tmp_path)
    old = first.open(1).directory
    (old / "store-0").mkdir()
    first.close()
    second = DataDirectory(tmp_path)
    world = second.open(1)
    assert (world.directory.name, world.is_continued) == ("world-0002", False)
    assert str(old) in world.note
    assert (old / "store-0").is_dir()
    second.close()


def test_other_number_of_stores_is_refused(tmp_path: Path):
    first = DataDirectory(tmp_path)
    close_well(first.open(2).directory)
    first.close()
    second = DataDirectory(tmp_path)
    with pytest.raises(LocalStackError, match="--segment-stores 2") as raised:
        second.open(3)
    assert raised.value.exit_code == 2
    second.close()


def test_containers_of_s3_are_chosen_once(tmp_path: Path):
    def opened(s3_containers: int | None) -> int:
        data = DataDirectory(tmp_path)
        try:
            return data.open(1, s3_containers).s3_containers
        finally:
            data.close()

    assert opened(None) == 0
    close_well(tmp_path / "world-0001")
    assert [opened(chosen) for chosen in (0, None, 4, 4, None)] == [0, 0, 4, 4, 4]
    for other in (0, 3):
        with pytest.raises(LocalStackError, match="--s3-containers 4") as raised:
            opened(other)
        assert raised.value.exit_code == 2


def test_a_directory_in_use_is_refused(tmp_path: Path):
    first = DataDirectory(tmp_path)
    first.open(1)
    second = DataDirectory(tmp_path)
    with pytest.raises(LocalStackError, match="in use by another local stack"):
        second.open(1)
    second.close()
    first.close()
    third = DataDirectory(tmp_path)
    third.open(1)
    third.close()


def test_what_cannot_be_written_is_one_clear_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(LocalStackError, match="cannot write to data directory"):
        DataDirectory(tmp_path / "file" / "inside").open(1)


def test_without_a_directory_nothing_stays():
    data = DataDirectory(None)
    world = data.open(1)
    assert world.directory.is_dir()
    data.close()
    assert not os.path.exists(data.path)


@pytest.mark.parametrize(
    "settings", ["", "{", "[]", '{"segmentStores": 2}', '{"segmentStores": 2, "s3Containers": null}']
)
def test_damaged_settings_say_what_to_do(tmp_path: Path, settings: str):
    first = DataDirectory(tmp_path)
    directory = first.open(2).directory
    close_well(directory)
    first.close()
    (directory / "world.json").write_text(settings)
    second = DataDirectory(tmp_path)
    with pytest.raises(LocalStackError, match="another --data-dir") as raised:
        second.open(2)
    assert raised.value.exit_code == 2
    second.close()


def test_settings_are_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = DataDirectory(tmp_path)
    directory = first.open(2).directory
    close_well(directory)
    first.close()
    monkeypatch.setattr(os, "replace", _killed)
    second = DataDirectory(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        second.open(2)
    second.close()
    monkeypatch.undo()
    third = DataDirectory(tmp_path)
    assert third.open(2).is_continued
    third.close()


def _killed(*_paths: object) -> None:
    raise KeyboardInterrupt


def test_data_keep_their_number_of_stores(tmp_path: Path):
    first = DataDirectory(tmp_path)
    directory = first.open(3).directory
    close_well(directory)
    first.close()
    again = DataDirectory(tmp_path)
    assert again.open().segment_stores == 3
    again.close()
    assert DataDirectory(tmp_path / "other").open().segment_stores == 1  # new data

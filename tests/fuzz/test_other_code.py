"""Deployments whose stores run two releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.other_code import other_code
from fuzz.replicated_stores import replicated_stores

TELLS_ITS_FILE = "print('ready port=1 host=' + __file__, flush=True)\n"


def test_every_second_store_runs_the_other_code(tmp_path: Path):
    with other_code("HEAD") as code, replicated_stores(tmp_path, {}, other=code) as group:
        main = code / "segmentstore_fargate" / "__main__.py"
        main.write_text(TELLS_ITS_FILE)
        stores = [group.add(zone) for zone in ("a", "b", "c", "d")]
        group.start(stores[0], stores[1], stores[3])
        assert [store.process.host for store in (stores[1], stores[3])] == [str(main)] * 2
        assert stores[0].process.host == "127.0.0.1"


def test_a_revision_that_git_does_not_know_is_refused():
    with (
        pytest.raises(ValueError, match=r"no-such-release is not there: .*name a commit or tag"),
        other_code("no-such-release"),
    ):
        pass

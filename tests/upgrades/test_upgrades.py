"""The former release and this one side by side: an upgrade part by part, and a rollback, under clients of both.

All of it is one deployment with an emulator of AWS. Clients of both releases write, read and commit meanwhile. At the
end each event must have come once, in the order of its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import two_releases
from two_releases import STORES, THIS, Deployment, Release, deployment, former_release, reason_to_skip

from fuzz.other_code import FORMER_NAME
from headrace.client import HeadraceError, IllegalStateError, ScalingPolicy, connect
from headrace.model.formats import FIRST_RELEASE

pytestmark = pytest.mark.nightly

REASON = reason_to_skip()
COMMAND = ("-c", "import sys; from headrace.cli import main; sys.exit(main(sys.argv[1:]))")


@pytest.fixture(scope="module")
def former() -> Release:
    if REASON:
        pytest.skip(REASON)
    return former_release()


@pytest.fixture
def deployed(tmp_path: Path, former: Release) -> Iterator[Deployment]:
    """A deployment of the former release."""
    with deployment(tmp_path) as made:
        made.start_stores(former)
        made.start_functions(former)
        yield made


def replace_all_stores(deployed: Deployment, release: Release) -> None:
    """The second store is killed: the other release recovers what its journal has."""
    for index in range(STORES):
        deployed.replace_store(index, release, crash=index == 1)


@pytest.mark.parametrize("stores_are_first", [False, True], ids=["functions-first", "stores-first"])
def test_an_upgrade_and_a_rollback_lose_nothing(deployed: Deployment, former: Release, stores_are_first: bool):
    clients = {release: deployed.client(release, name) for release, name in ((former, "former"), (THIS, "this"))}
    for release, client in clients.items():
        client.ask(f"use before-{release.name}")

    def use(step: str) -> None:
        """Each client uses new things, and what a client of the other release has left before."""
        for (own, client), other in zip(clients.items(), reversed(clients), strict=True):
            client.ask(f"use {step}-{own.name}")
            client.ask(f"reread before-{other.name}")

    for step, release in (("upgrade", THIS), ("rollback", former)):
        if stores_are_first:
            replace_all_stores(deployed, release)
            use(f"{step}-half")
            deployed.start_functions(release)
        else:
            deployed.start_functions(release)
            use(f"{step}-half")
            replace_all_stores(deployed, release)
        use(step)
    for client in clients.values():
        for own, other in ((former, THIS), (THIS, former)):
            client.ask(f"reread upgrade-half-{own.name}")
            client.ask(f"reread rollback-{other.name}")
    outcomes = {release.name: client.ask("check") for release, client in clients.items()}
    assert all("of transactions" in outcome for outcome in outcomes.values()), outcomes


def test_the_former_release_is_refused_after_the_end(deployed: Deployment, former: Release):
    client = deployed.client(former, "former")
    deployed.start_functions(THIS)
    with connect(deployed.url) as headrace:
        headrace.admin.create_stream("shop", "frozen", scaling=ScalingPolicy.fixed(1))
        with pytest.raises(IllegalStateError) as error:
            headrace.admin.freeze_stream("shop", "frozen")
        assert error.value.specific_code == "upgrade_not_finalized"
        with pytest.raises(IllegalStateError) as error:
            headrace.admin.cluster.finalize_upgrade()
        assert error.value.specific_code == "older_stores_run"
        replace_all_stores(deployed, THIS)
        finalized = deployed.program(THIS, [*COMMAND, "upgrade", "finalize", "--yes"])
        assert (finalized.returncode, finalized.stderr) == (0, "")
        assert headrace.admin.cluster.upgrade().is_finalized
        deployed.await_copies()
        said = deployed.store_that_ends(0, former)
        assert "a setting record of format 2 was found: this version reads format 1" in said
        deployed.start_store(0, THIS)
        deployed.start_functions(THIS)  # what they had read of the gate is a minute old at most
        headrace.admin.freeze_stream("shop", "frozen")
        client.ask("use after")
        assert "of transactions" in client.ask("check")
        deployed.start_functions(former)
        with pytest.raises(HeadraceError) as refused:
            headrace.admin.get_stream("shop", "frozen")
        assert refused.value.reported_as.http_status >= 500


def test_the_commit_is_that_of_the_former_release(former: Release):
    """The next release names its own predecessor."""
    assert f"v{FIRST_RELEASE}.0" == FORMER_NAME == former.name
    assert f'__version__ = "{FIRST_RELEASE}.0"' in (former.tree / "headrace" / "__init__.py").read_text()


def test_a_shallow_clone_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(two_releases, "FORMER_RELEASE", "0" * 40)
    assert two_releases.reason_to_skip() == f"git does not have {FORMER_NAME}, the commit 00000000: fetch its history"

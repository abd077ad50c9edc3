"""`headrace upgrade`: which releases run, and the end of the time in which the deployment can be rolled back."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.api.upgrades import UpgradeView
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome
from headrace.cli.session import Session
from headrace.model.errors import InvalidRequestError
from headrace.model.formats import FIRST_RELEASE

app = new_app()


@action(app, "status", examples=["headrace upgrade status"])
def status(session: Session) -> Outcome:
    """Show which releases run, and whether the upgrade is finalized."""
    return _shown(session.client.admin.cluster.upgrade())


@action(app, "finalize", examples=["headrace upgrade finalize --yes"])
def finalize(
    session: Session,
    yes: Annotated[bool, typer.Option("--yes", help="yes, the deployment cannot be rolled back after this")] = False,
) -> Outcome:
    """End the time in which the deployment can be rolled back, and use all that its release can do.

    Processes of former releases refuse to start afterwards. It is refused while a segment store of one runs.
    """
    if not yes:
        view = session.client.admin.cluster.upgrade()
        if not view.is_finalized:
            raise InvalidRequestError(
                f"after this no release before {view.release} starts in this deployment: add --yes if release "
                f"{view.release} works well, and all functions, stores and bridges run it"
            )
    return _shown(session.client.admin.cluster.finalize_upgrade())


def _shown(view: UpgradeView) -> Outcome:
    rows = [("controller", view.release)]
    rows += [(f"store {each.store_id}", each.release or FIRST_RELEASE) for each in view.stores]
    rows += [("finalized for", view.finalized), *[(f"waits: {name}", view.release) for name in view.waiting]]
    return Outcome(view.to_json(), ("WHAT", "RELEASE"), rows)

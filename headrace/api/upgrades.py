"""How far the upgrade of a deployment is."""

from __future__ import annotations

from typing import Annotated

from headrace.model.documents import Document, about


class StoreRelease(Document, frozen=True):
    """A segment store that runs, and its release."""

    store_id: str
    release: Annotated[str | None, about("Null: 0.2, which does not say it")]


class UpgradeView(Document, frozen=True):
    """The release of the controller, the one for which the deployment is finalized, and what waits for that.

    Until the deployment is finalized for `release`, it can be rolled back to `finalized`.
    """

    release: Annotated[str, about("Of the controller's functions")]
    finalized: Annotated[str, about("Releases before this one refuse to start")]
    stores: Annotated[tuple[StoreRelease, ...], about("Those that have not ended")]
    waiting: Annotated[tuple[str, ...], about("Formats that are not written before the upgrade is finalized")]

    @property
    def is_finalized(self) -> bool:
        return self.release == self.finalized

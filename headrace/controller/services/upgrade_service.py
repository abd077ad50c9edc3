"""Upgrades for operators: which releases run, and the end of the time in which a rollback is possible."""

from __future__ import annotations

from headrace.api.upgrades import StoreRelease, UpgradeView
from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.format_gate import finalize_writes, find_finalized_release
from headrace.model.errors import ConflictError, IllegalStateError
from headrace.model.formats import FIRST_RELEASE, RELEASE, formats_waiting, release_order
from headrace.ports.metadata_store import MetadataStore, WriteConflictError


class UpgradeService:
    """Every method raises ThrottledError or UnavailableError if the metadata store does not answer."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._records = ClusterRecords(store)

    def status(self) -> UpgradeView:
        """Costs one read and one query."""
        finalized = find_finalized_release(self._store)
        leases = [each.lease for each in self._records.leases() if not each.lease.has_ended]
        stores = tuple(StoreRelease(lease.store_id, lease.release or None) for lease in leases)
        return UpgradeView(RELEASE, finalized, stores, formats_waiting(finalized))

    def finalize(self) -> UpgradeView:
        """Allow all formats of this release; from now on former releases refuse to start. A repetition does nothing.

        Costs two reads and two queries, and one write.

        Raises:
            IllegalStateError: code "older_stores_run": a store of a former release has not ended. Code
                "release_too_old": the deployment is finalized for a later release.
            ConflictError: the record has changed meanwhile, or a restore is not finished.
        """
        leases = [each for each in self._records.leases() if not each.lease.has_ended]
        older = [
            each.lease.store_id
            for each in leases
            if release_order(each.lease.release or FIRST_RELEASE) < release_order(RELEASE)
        ]
        writes = finalize_writes(self._store)
        if writes and older:
            raise IllegalStateError(
                f"segment stores of a former release run: {', '.join(older[:10])}; replace them first, because they "
                "could not start again",
                details={"stores": older[:100], "release": RELEASE},
                code="older_stores_run",
            )
        if writes:
            try:
                self._store.write(*writes)
            except WriteConflictError as error:
                raise ConflictError("the deployment has changed meanwhile: look at it again") from error
        return self.status()

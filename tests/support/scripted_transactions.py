"""The controller's part in transactions, in front of a scripted cluster."""

from __future__ import annotations

from typing import Any

import httpx
from scripted_cluster import Cluster

from headrace.model.names import transaction_segment_name


def lease_outcome(transaction: str, status: int, answer: dict[str, Any]) -> dict[str, Any]:
    """One outcome of a request that renews several leases, from the answer to the request for this one alone."""
    error, end = answer.get("error"), answer.get("leaseEnd")
    return {"transaction": transaction, "status": status, "leaseEnd": end, "error": error}


class Transactions:
    """The controller's part, in front of a `Cluster`, whose store gets a segment for each segment of a transaction."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.states: dict[str, str] = {}
        self.outcome = "COMMITTED"
        self.asked: list[tuple[str, str, Any]] = []
        self.refusal: tuple[int, str] | None = None
        self.on_demand = False
        self.creates_all = False
        self._name = cluster.name
        self._made: dict[int, str] = {}
        cluster.name = lambda identifier: self._made.get(identifier) or self._name(identifier)  # type: ignore[method-assign]

    def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/scopes/s/streams/t/")
        if not path.startswith(("transaction", "commit-sets")):
            return self.cluster.handle(request)
        body = httpx.Response(200, content=request.content or b"null").json()
        self.asked.append((request.method, path, body))
        if path == "transaction-leases":
            return self._renewals(body)
        status, answer = self._outcome(request.method, path.split("/")[1:], body)
        return httpx.Response(status, json=answer)

    def _renewals(self, body: Any) -> httpx.Response:
        outcomes = []
        for transaction in body["transactions"]:
            status, answer = self._outcome("PUT", [transaction, "lease"], body)
            outcomes.append(lease_outcome(transaction, status, answer))
        return httpx.Response(200, json={"leases": outcomes})

    def _outcome(self, method: str, parts: list[str], body: Any) -> tuple[int, dict[str, Any]]:
        if self.refusal is not None:
            status, code = self.refusal
            return status, {"error": {"code": code, "message": "no", "retry": "never", "details": {}}}
        if (refused := self._contradiction(parts, body)) is not None:
            return 412, {"error": {"code": refused, "message": "it has ended", "retry": "never", "details": {}}}
        return 200, self._answer(method, parts, body)

    def _contradiction(self, parts: list[str], body: Any) -> str | None:
        """The code of the error of a ping, a commit or an abort that the state does not allow."""
        state = self.states.get(parts[0], "") if parts else ""
        wanted = {"lease": "OPEN", "state": (body or {}).get("state")}.get(parts[-1]) if len(parts) == 2 else None
        if wanted is not None and state.startswith("COMMIT") and wanted != "COMMITTING":
            return "transaction_committed"
        if wanted is not None and state.startswith("ABORT") and wanted != "ABORTING":
            return "transaction_aborted"
        return None

    def _answer(self, method: str, parts: list[str], body: Any) -> dict[str, Any]:
        if parts[1:] == ["segments"]:
            return self._view(parts[0])
        if method == "POST":
            self.on_demand = body.get("segments") == "on-demand" and not self.creates_all
            transaction = f"{len(self.states) + 1:032x}"
            self.states[transaction] = "OPEN"
            for parent in list(self.cluster.active):
                self._segment(parent, transaction)
        else:
            transaction = parts[0]
        if parts[1:] == ["state"] and self.states[transaction] == "OPEN":
            self.states[transaction] = body["state"]
        answer = self._view(transaction)
        if self.states[transaction] == "COMMITTING":
            self.states[transaction] = self.outcome
        elif self.states[transaction] == "ABORTED":
            self.refusal = 404, "transaction_not_found"  # a client that asks for ever is told
        return answer

    def _segment(self, parent: int, transaction: str) -> None:
        identifier = int(transaction, 16) << 64 | parent
        segment = type(self.cluster.segments[parent])(self.cluster.segments[parent].key_range)
        self.cluster.segments[identifier] = segment
        self._made[identifier] = transaction_segment_name(self._name(parent), int(transaction, 16))

    def _view(self, transaction: str) -> dict[str, Any]:
        made = {identifier: name for identifier, name in self._made.items() if identifier >> 64 == int(transaction, 16)}
        segments = [
            {
                "segmentId": identifier & (1 << 64) - 1,
                "name": self._name(identifier & (1 << 64) - 1),
                "transactionSegment": name,
                "low": self.cluster.segments[identifier].key_range.low,
                "high": self.cluster.segments[identifier].key_range.high,
            }
            for identifier, name in made.items()
        ]
        return {
            "transaction": transaction,
            "state": self.states[transaction],
            "creationTime": 1,
            "leaseEnd": 2,
            "completionTime": None,
            "label": None,
            "segments": segments,
            "onDemand": self.on_demand,
        }

    def events(self, transaction: str) -> list[bytes]:
        made = [own for own in self._made if own >> 64 == int(transaction, 16)]
        return [event for identifier in made for event in self.cluster.events(identifier)]

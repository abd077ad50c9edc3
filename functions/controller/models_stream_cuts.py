"""JSON of the stream cut routes."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from functions.controller.models_segments import Offsets, offsets
from functions.controller.parameters import WireModel


class CutRequest(WireModel):
    cut: Offsets = Field(description="Offset in bytes by segment id")

    def offsets(self) -> Mapping[int, int]:
        """Raises InvalidRequestError (code "invalid_stream_cut") for a value that cannot be a cut."""
        return offsets("cut", self.cut) or {}


class CutProblem(WireModel):
    code: str = Field(description="Of the error that a request with the cut would get")
    message: str


class CutCheck(WireModel):
    valid: bool = Field(description="A cut of this stream, behind its head and written already")


class ExplainedCutCheck(CutCheck):
    problem: CutProblem | None = Field(default=None, description="Why it is not valid")


class CutDistance(WireModel):
    bytes: int

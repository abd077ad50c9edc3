"""A trace of a random program that keeps all steps."""

from __future__ import annotations

from fuzz.program_trace import Trace


class WholeTrace(Trace):
    """`steps` are all of them, as they were noted."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def note(self, text: str) -> None:
        super().note(text)
        self.steps.append(text)

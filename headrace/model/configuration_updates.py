"""An update of a stream's configuration: what it replaces, and what has to follow from it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.stream_configuration import StreamConfiguration


@dataclass(frozen=True, slots=True)
class ConfigurationUpdate:
    """`version` is the number that the configuration has once `after` is in force."""

    before: StreamConfiguration
    after: StreamConfiguration
    version: int

    @property
    def added_tags(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.after.tags) - set(self.before.tags)))

    @property
    def removed_tags(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.before.tags) - set(self.after.tags)))

    @property
    def raises_minimum(self) -> bool:
        return self.after.scaling.min_segments > self.before.scaling.min_segments

    @property
    def changes_rate(self) -> bool:
        """Whether the segment stores have to measure the active segments against another rate."""
        before, after = self.before.scaling, self.after.scaling
        return (before.type, before.target_rate) != (after.type, after.target_rate)

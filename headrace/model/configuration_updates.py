"""An update of a stream's configuration: the values before and after, and the changes that it implies."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.log_classes import LogClass
from headrace.model.stream_configuration import StreamConfiguration

CONFIGURATION_CHANGED = "configuration_changed"


@dataclass(frozen=True, slots=True)
class ConfigurationUpdate:
    """`version` is the version of the configuration after the update."""

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
        """Whether the segment stores must measure the active segments against another rate."""
        before, after = self.before.scaling, self.after.scaling
        return (before.type, before.target_rate) != (after.type, after.target_rate)


def check_log_class(scoped_name: str, present: LogClass, given: LogClass | None) -> None:
    """Raises InvalidRequestError, code "log_class_fixed", unless `given` is the present class or None."""
    if given not in (None, present):
        raise InvalidRequestError(
            f"stream {scoped_name} is acknowledged by {present}: create another stream for another class",
            details={"acknowledgedBy": str(present)},
            code="log_class_fixed",
        )


def check_configuration_version(scoped_name: str, version: int, expected: int | None) -> None:
    """Raises IllegalStateError, code "configuration_changed", unless `expected` is the version or None."""
    if expected not in (None, version):
        raise IllegalStateError(
            f"the configuration of {scoped_name} has version {version}, the update expects {expected}: another update "
            "came first, read the configuration again",
            details={"configurationVersion": version, "expectedConfigurationVersion": expected},
            code=CONFIGURATION_CHANGED,
        )

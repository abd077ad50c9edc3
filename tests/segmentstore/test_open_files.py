"""Connections leave files for the journal and the lease."""

from __future__ import annotations

import resource

import pytest

from headrace.model.errors import InvalidRequestError
from segmentstore_fargate.open_files import OTHER_FILES, connections_within

UNLIMITED = resource.RLIM_INFINITY


class Limits:
    """The limits of a process, soft and hard."""

    def __init__(self, soft: int, hard: int) -> None:
        self.now = soft, hard

    def getrlimit(self, which: int) -> tuple[int, int]:
        assert which == resource.RLIMIT_NOFILE
        return self.now

    def setrlimit(self, which: int, limits: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE
        assert limits[1] == self.now[1], "only root can change the hard limit back"
        self.now = limits


@pytest.fixture
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Limits:
    made = Limits(*request.param)
    monkeypatch.setattr(resource, "getrlimit", made.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", made.setrlimit)
    return made


@pytest.mark.parametrize(
    "limits", [(65_536, 65_536), (UNLIMITED, UNLIMITED), (4096 + OTHER_FILES, 9999)], indirect=True
)
def test_high_limit_stays_as_it_is(limits: Limits):
    before = limits.now
    assert connections_within(4096) == 4096
    assert limits.now == before


@pytest.mark.parametrize("limits", [(1024, 1 << 20), (1024, UNLIMITED)], indirect=True)
def test_low_limit_is_raised_as_far_as_needed(limits: Limits):
    assert connections_within(4096) == 4096
    assert limits.now[0] == 4096 + OTHER_FILES


@pytest.mark.parametrize("limits", [(256, 1024), (1024, 1024)], indirect=True)
def test_fewer_connections_where_the_limit_is_low(limits: Limits, caplog: pytest.LogCaptureFixture):
    assert connections_within(4096) == 1024 - OTHER_FILES
    assert limits.now[0] == 1024
    assert "event=connections_limited open_files=1024 wanted=4096 connections=512" in caplog.text


@pytest.mark.parametrize("limits", [(256, 256), (256, OTHER_FILES)], indirect=True)
def test_limit_that_leaves_no_connection_is_refused(limits: Limits):
    with pytest.raises(InvalidRequestError, match="ulimit"):
        connections_within(4096)

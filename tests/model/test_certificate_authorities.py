"""Authorities are replaced without a moment at which a valid certificate is refused."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.certificate_authorities import (
    AUTHORITY_LIFE_S,
    ENDS_SOON_S,
    LEAF_LIFE_S,
    PUBLISHED_BEFORE_USE_S,
    RENEWED_BELOW_S,
    TRUSTED_AFTER_USE_S,
    AuthorityPlan,
    CertificateAuthority,
    leaf_end_s,
    must_renew,
    plan_authorities,
)

DAY_S = 86_400
NOW_S = 1_800_000_000
STEPS = ("run", "run", "run", "new key", "nothing")


def _authority(key: str, published_s: int = NOW_S) -> CertificateAuthority:
    return CertificateAuthority(key, published_s, published_s + AUTHORITY_LIFE_S)


def test_the_first_authority_issues_at_once():
    plan = plan_authorities([], ["a"], NOW_S)
    assert plan == AuthorityPlan(_authority("a"), (_authority("a"),), ("a",))


@pytest.mark.parametrize(
    ("age_s", "issuer", "trusted"),
    [
        (0, "a", "ab"),
        (PUBLISHED_BEFORE_USE_S - 1, "a", "ab"),
        (PUBLISHED_BEFORE_USE_S, "b", "ab"),
        (PUBLISHED_BEFORE_USE_S + TRUSTED_AFTER_USE_S - 1, "b", "ab"),
        (PUBLISHED_BEFORE_USE_S + TRUSTED_AFTER_USE_S, "b", "b"),
    ],
)
def test_a_successor_is_known_before_it_issues(age_s: int, issuer: str, trusted: str):
    published = [_authority("a", NOW_S - 3_000 * DAY_S), _authority("b", NOW_S - age_s)]
    plan = plan_authorities(published, ["a", "b"], NOW_S)
    assert (plan.issuer.key, "".join(each.key for each in plan.trusted), plan.missing) == (issuer, trusted, ())


def test_a_dropped_authority_does_not_come_back():
    """Its key may stay declared for as long as the operator likes."""
    plan = plan_authorities([_authority("b", NOW_S - 100 * DAY_S)], ["a", "b"], NOW_S)
    assert (plan.missing, [each.key for each in plan.trusted]) == ((), ["b"])


def test_an_undeclared_authority_is_distrusted_at_once():
    plan = plan_authorities([_authority("a", NOW_S - 100 * DAY_S)], ["b"], NOW_S)
    assert (plan.issuer.key, plan.missing, [each.key for each in plan.trusted]) == ("b", ("b",), ["b"])


def test_an_authority_that_has_ended_is_made_again():
    ended = CertificateAuthority("a", NOW_S - AUTHORITY_LIFE_S, NOW_S)
    plan = plan_authorities([ended], ["a"], NOW_S)
    assert (plan.issuer, plan.missing) == (_authority("a"), ("a",))


@pytest.mark.parametrize(("left_s", "soon"), [(ENDS_SOON_S, False), (ENDS_SOON_S - 1, True)])
def test_the_end_of_the_newest_authority_is_told(left_s: int, soon: bool):
    newest = CertificateAuthority("a", NOW_S - 100 * DAY_S, NOW_S + left_s)
    assert plan_authorities([newest], ["a"], NOW_S).ends_soon(NOW_S) is soon


@pytest.mark.parametrize(("left_s", "due"), [(RENEWED_BELOW_S, False), (RENEWED_BELOW_S - 1, True)])
def test_a_certificate_is_replaced_below_ten_days(left_s: int, due: bool):
    assert must_renew(NOW_S + left_s, NOW_S) is due


def test_no_certificate_outlives_its_issuer():
    assert leaf_end_s(NOW_S + AUTHORITY_LIFE_S, NOW_S) == NOW_S + LEAF_LIFE_S
    assert leaf_end_s(NOW_S + DAY_S, NOW_S) == NOW_S + DAY_S


@dataclass
class Deployment:
    """A deployment that is run from time to time, with a client that reads the bundle once a month."""

    now_s: int = NOW_S
    keys: list[str] = field(default_factory=lambda: ["0"])
    published: tuple[CertificateAuthority, ...] = ()
    leaf: tuple[str, int] | None = None
    client_reads_s: int = 0
    client_knows: set[str] = field(default_factory=set)

    def run(self) -> None:
        plan = plan_authorities(self.published, self.keys, self.now_s)
        assert plan.issuer in plan.trusted
        assert len({each.key for each in plan.trusted}) == len(plan.trusted)
        self.published = plan.trusted
        assert plan_authorities(self.published, self.keys, self.now_s) == AuthorityPlan(plan.issuer, plan.trusted, ())
        if self.leaf is None or must_renew(self.leaf[1], self.now_s):
            self.leaf = plan.issuer.key, leaf_end_s(plan.issuer.ends_s, self.now_s)

    def connect(self) -> None:
        """What a client finds that has read the bundle within the last 30 days."""
        if self.now_s - self.client_reads_s >= PUBLISHED_BEFORE_USE_S:
            self.client_reads_s, self.client_knows = self.now_s, {each.key for each in self.published}
        if self.leaf is not None and self.leaf[1] > self.now_s:
            assert self.leaf[0] in self.client_knows
            assert self.leaf[0] in {each.key for each in self.published}


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["run", "run", "run", "new key", "nothing"])), max_size=40)
)
def test_every_valid_certificate_is_always_trusted(steps: list[tuple[int, str]]):
    """Whatever the days between runs, and whenever keys are added."""
    world = Deployment()
    world.run()
    for days, step in steps:
        for _ in range(days * 2):
            world.now_s += DAY_S // 2
            world.connect()
        if step == "new key":
            world.keys.append(str(len(world.keys)))
        if step != "nothing":
            world.run()
        world.connect()


@settings(deadline=None)
@given(st.integers(1, 4))
def test_in_the_end_only_the_newest_is_trusted(count: int):
    world = Deployment()
    for _ in range(count):
        world.run()
        world.keys.append(str(len(world.keys)))
        world.now_s += DAY_S
    for _ in range(50):
        world.run()
        world.now_s += DAY_S
    assert [each.key for each in world.published] == [world.keys[-1]]

"""The function behind the rotation of token keys: each step can be repeated, and no change of others is lost."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lambda_context import FunctionContext
from secrets_in_memory import SECRET, SecretsInMemory

from functions import wiring
from functions.deployment import token_keys
from functions.deployment.token_keys import CREATE, FINISH, SET, TEST, handler
from headrace import topology
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.token_key_editors import TokenKeySecretEditor, revoke, rotate
from headrace.adapters.token_keys import REFRESH_S
from headrace.codec.delegation_tokens import NO_KEYS_TEXT, TokenKeys, stored_keys
from headrace.model.errors import ConflictError, HeadraceError, IllegalStateError, InvalidRequestError

LIFE_S = 600
STEPS = (CREATE, SET, TEST, FINISH)


class World:
    """A secret, its rotations, and an operator who changes it meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.secrets = SecretsInMemory(NO_KEYS_TEXT)
        self.operator = TokenKeySecretEditor(SECRET, self.secrets)
        monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
        monkeypatch.setattr(wiring, "clock", lambda: self.clock)
        monkeypatch.setattr(token_keys, "secrets_client", lambda: self.secrets)

    def step(self, step: str, version: str) -> None:
        assert handler({"SecretId": SECRET, "ClientRequestToken": version, "Step": step}, FunctionContext()) == {
            "step": step
        }

    def rotate(self) -> None:
        version = self.secrets.begin_rotation()
        for step in STEPS:
            self.step(step, version)

    @property
    def keys(self) -> TokenKeys:
        found = stored_keys(self.secrets.current)
        assert found is not None
        return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_the_first_rotation_makes_the_first_key(world: World):
    world.rotate()
    (key,) = world.keys.keys
    assert world.keys.signing_key(world.clock.now_ms() / 1_000) == key
    assert "AWSPENDING" not in world.secrets.stages


def test_a_rotation_adds_a_key_and_ends_the_others(world: World):
    world.rotate()
    world.clock.advance(30 * 86_400_000)
    world.rotate()
    old, new = world.keys.keys
    assert (old.verifies_until_s is None, new.verifies_until_s is None) == (False, True)
    assert world.keys.signing_key(world.clock.now_ms() / 1_000) == old


def test_steps_can_be_repeated(world: World):
    world.rotate()
    version = world.secrets.begin_rotation()
    for step in (CREATE, CREATE, SET, SET, TEST, TEST, FINISH, FINISH):
        world.step(step, version)
    assert len(world.keys.keys) == 2


def test_all_steps_can_be_repeated_after_the_last(world: World):
    """Secrets Manager does so if it did not hear that the last step is done."""
    world.rotate()
    version = world.secrets.begin_rotation()
    for step in STEPS:
        world.step(step, version)
    keys = world.keys
    for step in STEPS:
        world.step(step, version)
    assert world.keys == keys


@pytest.mark.parametrize("waited_s", [600, 1_200, 7_200])
def test_a_late_rotation_lets_no_unknown_key_sign(world: World, waited_s: int):
    world.rotate()
    before = world.keys
    version = world.secrets.begin_rotation()
    for step in STEPS[:-1]:
        world.step(step, version)
    world.clock.advance(waited_s * 1_000)
    with contextlib.suppress(ConflictError):
        world.step(FINISH, version)
    until_all_know_s = world.clock.now_ms() / 1_000 + REFRESH_S
    signing = world.keys.signing_key(until_all_know_s)
    assert signing.key_id == before.keys[0].key_id
    assert signing.verifies(until_all_know_s + LIFE_S)
    world.rotate()
    assert len(world.keys.keys) == (3 if waited_s == 600 else 2)


@pytest.mark.parametrize("after", STEPS[:-1])
@pytest.mark.parametrize("change", ["rotate", "revoke"])
def test_a_change_by_an_operator_is_kept(world: World, after: str, change: str):
    world.rotate()
    world.rotate()
    before = world.keys
    version = world.secrets.begin_rotation()
    for step in STEPS[: STEPS.index(after) + 1]:
        world.step(step, version)
    if change == "rotate":
        rotate(world.operator, world.clock, LIFE_S)
    else:
        revoke(world.operator, before.keys[0].key_id, world.clock)
    changed = world.keys
    with pytest.raises(ConflictError):
        world.step(FINISH, version)
    assert world.keys == changed
    world.rotate()
    assert {key.key_id for key in changed.keys} < {key.key_id for key in world.keys.keys}


def test_an_operator_may_rotate_between_rotations(world: World):
    world.rotate()
    rotate(world.operator, world.clock, LIFE_S)
    world.rotate()
    assert len(world.keys.keys) == 3


def test_a_change_in_the_last_moment_wins(world: World):
    world.rotate()
    version = world.secrets.begin_rotation()
    world.step(CREATE, version)
    changes = [lambda: rotate(world.operator, world.clock, LIFE_S)]

    def interfere(call: str) -> None:
        if call == "update_secret_version_stage" and changes:
            changes.pop()()

    world.secrets.before = interfere
    with pytest.raises(ConflictError):
        world.step(FINISH, version)
    assert len(world.keys.keys) == 2


def test_a_version_that_nobody_asked_for_is_refused(world: World):
    with pytest.raises(IllegalStateError, match="not one that a rotation makes"):
        world.step(CREATE, "other")


def test_an_empty_version_does_not_pass_the_test(world: World):
    with pytest.raises(IllegalStateError, match="no key without an end"):
        world.step(TEST, world.secrets.begin_rotation())


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"SecretId": SECRET, "ClientRequestToken": "v", "Step": "other"},
        {"SecretId": SECRET, "ClientRequestToken": 1, "Step": CREATE},
        {"SecretId": None, "ClientRequestToken": "v", "Step": CREATE},
    ],
)
def test_other_events_are_refused(world: World, event: dict[str, Any]):
    with pytest.raises(InvalidRequestError):
        handler(event, FunctionContext())


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_keys_are_lost_only_by_revocation(chance: random.Random):
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch)
        world.rotate()
        known, revoked = {key.key_id for key in world.keys.keys}, set()
        version, step = "", len(STEPS)
        for _ in range(chance.randrange(25)):
            what = chance.choice(["step", "step", "step", "rotate", "revoke"])
            try:
                if what == "rotate":
                    rotate(world.operator, world.clock, LIFE_S)
                elif what == "revoke":
                    key_id = chance.choice(world.keys.keys).key_id
                    revoke(world.operator, key_id, world.clock)
                    revoked.add(key_id)
                else:
                    if step == len(STEPS):
                        version, step = world.secrets.begin_rotation(), 0
                    step += 1
                    world.step(STEPS[step - 1], version)
            except HeadraceError:
                step = len(STEPS)
            held = {key.key_id for key in world.keys.keys}
            assert known - revoked <= held
            assert not held & revoked
            known |= held


def test_the_declared_handler_is_this_one():
    module, _, name = topology.TOKEN_KEY_ROTATION.handler.rpartition(".")
    assert (module, name) == (token_keys.__name__, "handler")

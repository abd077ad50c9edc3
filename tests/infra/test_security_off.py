"""What a deployment has less without TLS and tokens: exactly what is listed here."""

from __future__ import annotations

from collections import Counter

import pytest
from cdk_assembly import Assembly

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

SECURE_STACKS = {"HeadraceCertificates", "HeadraceTokenKeys"}


def _others(assembly: Assembly) -> Counter[tuple[str, str]]:
    return Counter((each.stack, each.type) for each in assembly.resources() if each.stack not in SECURE_STACKS)


def test_a11_security_off_differs_in_these_resources(default_assembly: Assembly, assembly: Assembly) -> None:
    """The two stacks of keys and certificates; the rest of the deployment keeps its shape."""
    assert default_assembly.templates.keys() - assembly.templates.keys() == SECURE_STACKS
    assert assembly.templates.keys() <= default_assembly.templates.keys()
    more, fewer = _others(default_assembly) - _others(assembly), _others(assembly) - _others(default_assembly)
    print(more, fewer)
    assert fewer == Counter()
    assert more == Counter()


def _changed(first: Assembly, second: Assembly) -> Counter[tuple[str, str]]:
    """The resources with the same id in both, whose properties differ."""
    before = {(each.stack, each.logical_id): each for each in first.resources()}
    after = {(each.stack, each.logical_id): each for each in second.resources()}
    return Counter(
        (each.stack, each.type)
        for name, each in before.items()
        if name in after and after[name].properties != each.properties
    )


def test_a11_security_off_changes_these_resources(default_assembly: Assembly, assembly: Assembly) -> None:
    changed = _changed(default_assembly, assembly)
    print(changed)
    assert changed == Counter()

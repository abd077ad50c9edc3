"""What a destroyed deployment may leave behind, and what not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

Inventory = Mapping[str, Sequence[str]]
"""Names of resources by their kind."""

KEPT_BY_DESIGN: Final = {
    "secret in deletion": "Secrets Manager keeps a deleted secret for its recovery window",
    "key in deletion": "KMS deletes a key after its waiting period, which the template declares",
}
KEPT_BY_AWS: Final = (
    (
        "log group",
        re.compile(r"/aws/(lambda|vpc|apigateway|ecs|codebuild)/(?!headrace)"),
        "made by AWS and not by a stack",
    ),
    ("role", re.compile(r"AWSServiceRoleFor"), "a role that AWS makes for a service"),
)


def leftovers(before: Inventory, after: Inventory) -> dict[str, list[str]]:
    """What is there after the deletion and was not there before the deployment, by kind."""
    new = {kind: [name for name in names if name not in set(before.get(kind, ()))] for kind, names in after.items()}
    return {kind: sorted(names) for kind, names in new.items() if names}


def judge(found: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Divide leftovers into lines about what is kept by design, with the reason, and lines about what must be gone."""
    kept, wrong = [], []
    for kind, names in sorted(found.items()):
        for name in names:
            reason = KEPT_BY_DESIGN.get(kind) or next(
                (why for of_kind, pattern, why in KEPT_BY_AWS if kind == of_kind and pattern.match(name)), None
            )
            if reason is None:
                wrong.append(f"{kind} {name}")
            else:
                kept.append(f"{kind} {name}: {reason}")
    return kept, wrong

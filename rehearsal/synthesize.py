"""Synthesizes the app with settings: `python -m rehearsal.synthesize OUT [broken-image] NAME=VALUE...`, as app.py does.

There are two differences. The bundles of functions have wheels for this machine's processor, under the same asset
names, because the emulator runs functions here. cdk-nag does not run: `make synth` does that. With `broken-image` the
program of the stores ends at its start.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any, Final

from rehearsal.paths import ROOT

BROKEN_IMAGE: Final = "broken-image"
PROGRAM: Final = "segmentstore_fargate/__main__.py"
PLATFORMS: Final = {"x86_64": "x86_64-manylinux2014", "aarch64": "aarch64-manylinux2014"}


def main() -> None:
    out, *given = sys.argv[1:]
    settings = [each for each in given if each != BROKEN_IMAGE]
    context = json.loads((ROOT / "cdk.json").read_text())["context"]
    # The app tests nothing by these rules, and they take most of the time of a synth.
    context |= dict(each.split("=", 1) for each in settings) | {"@aws-cdk/core:validateAgainstDefaultRules": False}
    os.environ |= {"CDK_OUTDIR": out, "CDK_CONTEXT_JSON": json.dumps(context)}

    # The CDK starts Node when it is imported, with the variables from above.
    import aws_cdk as cdk

    from infra.packaging import image_context, lambda_bundle

    if BROKEN_IMAGE in given:
        _break_image(image_context)  # before the stacks import the function by its name

    from infra.application import add_stacks
    from infra.settings import Settings

    for_this_machine = functools.partial(lambda_bundle.build_bundle, platform=PLATFORMS[platform.machine()])
    lambda_bundle.build_bundle = for_this_machine
    app = cdk.App()
    add_stacks(app, Settings.from_context(app.node))
    app.synth()


def _break_image(image_context: Any) -> None:
    """The program of the stores in their image ends at its start."""
    stage = image_context.stage_image_context

    def stage_broken(target: Path, *given: Any, **named: Any) -> None:
        stage(target, *given, **named)
        if (target / PROGRAM).exists():  # the image of the bridge has none
            (target / PROGRAM).write_text("raise SystemExit(1)\n")

    image_context.stage_image_context = stage_broken


if __name__ == "__main__":
    main()

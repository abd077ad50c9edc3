"""Synthesizes the app with settings: `python -m rehearsal.synthesize OUT NAME=VALUE...`, as app.py does.

There are two differences. The bundles of functions have wheels for this machine's processor, under the same asset
names, because the emulator runs functions here. cdk-nag does not run: `make synth` does that.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import sys
from typing import Final

from rehearsal.paths import ROOT

PLATFORMS: Final = {"x86_64": "x86_64-manylinux2014", "aarch64": "aarch64-manylinux2014"}


def main() -> None:
    out, *settings = sys.argv[1:]
    context = json.loads((ROOT / "cdk.json").read_text())["context"]
    # The app tests nothing by these rules, and they take most of the time of a synth.
    context |= dict(each.split("=", 1) for each in settings) | {"@aws-cdk/core:validateAgainstDefaultRules": False}
    os.environ |= {"CDK_OUTDIR": out, "CDK_CONTEXT_JSON": json.dumps(context)}

    # The CDK starts Node when it is imported, with the variables from above.
    import aws_cdk as cdk

    from infra.application import add_stacks
    from infra.packaging import lambda_bundle
    from infra.settings import Settings

    for_this_machine = functools.partial(lambda_bundle.build_bundle, platform=PLATFORMS[platform.machine()])
    lambda_bundle.build_bundle = for_this_machine
    app = cdk.App()
    add_stacks(app, Settings.from_context(app.node))
    app.synth()


if __name__ == "__main__":
    main()

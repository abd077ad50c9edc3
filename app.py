"""The CDK app: `cdk synth`, `cdk deploy` and `cdk destroy` start here (see cdk.json and docs/operating/deploy.md)."""

from __future__ import annotations

import aws_cdk as cdk

from infra.application import add_stacks
from infra.settings import Settings

app = cdk.App()
add_stacks(app, Settings.from_context(app.node))
app.synth()

"""The example is a project of its own: a test runs it as its users would."""

collect_ignore = ["example"]

"""A deterministic simulator of the replicated log. See README.md in this folder."""

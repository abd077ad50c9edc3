"""Reader groups."""

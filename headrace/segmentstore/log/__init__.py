"""Tier 1: the journal of a volume, and the ledgers of the containers that share it."""

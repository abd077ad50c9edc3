"""Tier 2: packs appended bytes into objects, keeps the chunk directory, reads back what memory gave away."""

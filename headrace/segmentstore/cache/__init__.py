"""The cache of appended bytes in memory, the index over it, and the tokens of reads from tier 2."""

"""The domain: immutable values and pure rules. No I/O, no clock, no randomness; those come in as arguments."""

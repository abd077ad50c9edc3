"""Steps that several operations have in common."""

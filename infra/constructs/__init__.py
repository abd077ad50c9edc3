"""Building blocks that several stacks use, each with the decisions that must not differ between its copies."""

"""The Spark connector: one planner, one range reader, one event parser, thin faces."""

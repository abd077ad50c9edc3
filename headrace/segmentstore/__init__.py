"""The segment store engine: containers, durable log, read index, tiering. It knows no vendor."""

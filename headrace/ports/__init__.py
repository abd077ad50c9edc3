"""What the core asks of the world, as Protocols only. Adapters implement them; wiring modules choose."""

"""Every port in memory, with the behaviour of the real thing: tests, simulations and emulators stand on these."""

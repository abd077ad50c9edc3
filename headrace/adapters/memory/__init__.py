"""Every port in memory, with the behaviour of the real service, for tests, simulations and emulators."""

"""Background operations, one module each. Every step may run twice; a crash between two steps loses nothing."""

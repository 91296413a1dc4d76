"""Real clients, each against a running server with the sim engine."""

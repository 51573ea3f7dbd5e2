"""Real servers from packages, started by tests: ports are free ones, directories temporary."""

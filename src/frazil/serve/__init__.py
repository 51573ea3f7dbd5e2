"""The way in and out over a network."""

"""Keyed rows: index, deletion vectors and folding."""

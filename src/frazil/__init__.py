"""Frazil: an Iceberg-native streaming log."""

"""One SQL over all tiers: DuckDB does the SQL, this package decides what it may see and read."""

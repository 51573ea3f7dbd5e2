"""Ingest: what comes in becomes validated records of a topic's schema, or a clear refusal."""

"""The disk tier: Parquet files, their catalog and maintenance."""

"""The lake: moves staged records into Iceberg tables, exactly once, with Spark.

`docs/internals/lake.md` has the protocol. Only the worker's side imports `pyspark`: `session`,
`stages`, `spark_table`, `worker`. Everything else runs in the engine's process.
"""

"""The archive: the log as Parquet files outside of Postgres, reading them, and purging archived events."""

"""The archive: the log as Parquet files outside of Postgres, reading them, and purging what is archived."""

"""The resources of Dagster: Postgres and Spark. What they give is made in `millrace.postgres` and `millrace.spark`."""

"""The resources of Dagster: Postgres and Spark. `millrace.postgres` and `millrace.spark` do their work."""

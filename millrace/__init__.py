"""Millrace: a Postgres event store, exactly-once views, read models on Spark, run by Dagster."""

"""Postgres: where the event store is, the embedded server, and the resource of Dagster."""

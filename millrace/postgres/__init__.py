"""Postgres: where the event store is, connections that notice silence, the embedded server, psql."""

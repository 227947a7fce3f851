"""Rebuilding a read model: on one machine and on a cluster, from Postgres and from the archive."""

"""Connections and clients: everything that talks to Postgres, Spark or HTTP. No Dagster assets, no read models."""

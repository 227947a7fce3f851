"""Code that depends on private parts of Dagster, which an upgrade of it may break."""

"""Read models as assets: how Dagster shows and rebuilds each declared read model."""

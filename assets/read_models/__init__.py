"""Read models as assets: how Dagster shows and rebuilds each declared one."""

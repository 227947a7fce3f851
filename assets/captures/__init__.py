"""Change capture as assets: how Dagster shows and runs each declared capture."""

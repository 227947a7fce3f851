"""The objects of Dagster of the example shop, a file each."""

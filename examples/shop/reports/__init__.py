"""The reports of the example shop, a file each."""

"""The captures of the example shop, a file each."""

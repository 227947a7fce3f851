"""The read models of the example shop, a file each."""

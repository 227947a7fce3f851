"""The deciders of the example shop, one file each."""

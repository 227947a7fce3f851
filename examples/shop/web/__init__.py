"""The HTTP servers of the example shop."""

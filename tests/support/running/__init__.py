"""A running `millrace up`, as tests start it."""

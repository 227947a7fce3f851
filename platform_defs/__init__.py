"""Entry points: what Dagster loads (`definitions` and the nouns beside it), the command line, the local platform."""

"""How Spark makes the rows of read models from events."""

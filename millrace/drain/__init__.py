"""Consuming the log into read models: claim, build in Spark, commit effect and position together."""

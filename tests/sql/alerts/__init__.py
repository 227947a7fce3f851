"""The functions of sql/functions/alerts."""

"""The functions of sql/functions/operations."""

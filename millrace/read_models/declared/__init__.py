"""The declarations of read models: their keys, columns and functions, and what they mean."""

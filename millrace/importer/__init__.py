"""Importing event logs from files: CSV, JSON Lines, XES and Parquet."""

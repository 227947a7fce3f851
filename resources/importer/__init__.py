"""Importing event logs from files: CSV, JSON Lines and Parquet."""

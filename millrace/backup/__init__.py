"""Backups of a whole store, and restoring one into an empty database."""

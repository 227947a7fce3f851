"""Importing files of events from elsewhere."""

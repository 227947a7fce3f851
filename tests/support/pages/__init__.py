"""Helpers that read the README and the pages of docs/, and follow their blocks."""

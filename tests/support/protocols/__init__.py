"""Protocols as small models; a search visits all their states."""

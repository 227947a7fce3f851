"""Comparing captured tables with their streams, to verify or to repair."""

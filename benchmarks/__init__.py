"""Measurements, each a separate program, that print numbers of this machine now; nothing here is a test."""
